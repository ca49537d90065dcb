"""A coordinator with a real ledger and without sockets: what it sends is kept."""

from pathlib import Path
from typing import Any

from slav1.breach import Breach, Status
from slav1.contract import Contract
from slav1.coordinator import messages
from slav1.coordinator.coordinator import Coordinator
from slav1.coordinator.journal import Journal
from slav1.coordinator.run_ledger import RunLedger
from slav1.ledger import Entry, read_ledger
from slav1.phase import Phase
from slav1.sample import Sample


class Books:
    """Ledger and journal of one attempt, and what was told to people."""

    def __init__(self, folder: Path, attempt: int = 0) -> None:
        self.path = folder / "ledger.jsonl"
        self.told: list[str] = []
        self.ledger = RunLedger(self.path, self.told.append)
        self.journal = Journal(self.ledger, attempt)

    def entries(self, kind: str | None = None) -> list[Entry]:
        found = read_ledger(self.path) if self.path.exists() else []
        return [entry for entry in found if kind in (None, entry.kind)]

    def messages(self, kind: str) -> list[str]:
        return [entry.message or "" for entry in self.entries(kind)]

    def close(self) -> None:
        self.ledger.close()
        self.ledger.let_go()


class Job(Books):
    """One rank a node unless told otherwise; time is what the test says."""

    def __init__(
        self, folder: Path, *, num_nodes: int = 2, ranks_of_node: int = 1, **clauses: Any
    ) -> None:
        super().__init__(folder)
        self.sent: list[tuple[int, Any]] = []
        self.now_s = 100.0
        self.ranks_of_node = ranks_of_node
        self.num_nodes = num_nodes
        self.coordinator = Coordinator(
            Contract.level("L1").override(**clauses),
            world_size=num_nodes * ranks_of_node,
            num_nodes=num_nodes,
            journal=self.journal,
            send=lambda node, message: self.sent.append((node, message)),
        )

    def start(self) -> "Job":
        """Everybody is there."""
        for node in range(self.num_nodes):
            self.hear(node, messages.NodeHello(node=node))
            for place in range(self.ranks_of_node):
                self.hear(node, messages.RankJoined(rank=node * self.ranks_of_node + place))
        return self

    def hear(self, node: int, message: Any) -> None:
        self.coordinator.on_message(node, message, self.now_s)

    def report(self, node: int, *findings: Breach, samples: tuple[Sample, ...] = ()) -> None:
        packed = [messages.pack_breach(finding) for finding in findings]
        self.hear(node, messages.Report(samples=list(samples), findings=packed))

    def pass_s(self, seconds: float, speaking: tuple[int, ...] = ()) -> None:
        """Lets time pass, tick by tick; these nodes report each second."""
        for _ in range(round(seconds)):
            self.now_s += 1.0
            for node in speaking:
                self.report(node)
            self.coordinator.on_tick(self.now_s)

    def leave(self, rank: int, reason: str = "finished", *, is_lost: bool = False) -> None:
        node = rank // self.ranks_of_node
        self.hear(node, messages.RankLeft(rank=rank, is_lost=is_lost, reason=reason))

    def done(self, node: int, **num_seen: int) -> None:
        self.hear(node, messages.NodeDone(num_seen=num_seen, num_lost=0))

    def of_kind(self, kind: type) -> list[tuple[int, Any]]:
        return [(node, message) for node, message in self.sent if isinstance(message, kind)]


def finding(rule: str, rank: int, **others: Any) -> Breach:
    """A breach that the contract acts on if the rule is enforced."""
    facts = {
        "step": 7,
        "phase": Phase.FORWARD,
        "statistic": 1.0,
        "limit": 0.5,
        "unit": "s",
        "message": f"{rule} on rank {rank}",
    }
    return Breach(rule=rule, rank=rank, **{**facts, **others})


def recovery(rule: str, rank: int) -> Breach:
    return finding(rule, rank, status=Status.RECOVERED, message=f"{rule} is over")
