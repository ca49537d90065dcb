"""What only the monitor beside rank 0 has: the coordinator, its port and its ledger."""

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import zmq

from slav1.contract import Contract
from slav1.coordinator.adviser import Adviser, metadata_of
from slav1.coordinator.coordinator import Coordinator
from slav1.coordinator.journal import Journal
from slav1.coordinator.recovery import earlier_fault
from slav1.coordinator.rollbacks import earlier_rollbacks
from slav1.coordinator.run_ledger import RunLedger
from slav1.coordinator.say import say
from slav1.coordinator.transport import KeyPair, Listener
from slav1.monitor.config import MonitorConfig
from slav1.monitor.events import Events
from slav1.session.run_folder import save_contract, save_text

if TYPE_CHECKING:
    from slav1.policy.process import PolicyProcess

FLUSH_EVERY_S = 1.0
"""Pause between two tries to write what a full disk refused, in seconds."""

POLICY_COPY = "policy.rego"
"""Name of the policy's copy in the run folder: what was in force, whatever becomes of the file."""

_MAX_MESSAGES = 256


class JobEnd:
    """Opens the coordinator's port, hears the nodes, and writes the run's files."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", config: MonitorConfig, contract: Contract
    ) -> None:
        """Opens port and ledger.

        Raises:
            PortInUseError: If the contract names a port that is taken.
            CannotListenError: If the port can't be opened.
            RunTakenError: If another job that still runs writes into the run folder.
            PolicyError: If the contract's policy can't be used.
        """
        keys = KeyPair(config.server_public, config.server_secret)
        self._folder = Path(config.run_folder)
        self._contract = contract
        self._is_contract_written = False
        self._policy: PolicyProcess | None = None
        self._flushed_s = monotonic()
        self._listener = Listener(context, keys, config.client_public)
        try:
            self._policy = _policy_of(contract)
            self.address = self._listener.open(config.host, contract.monitor.port)
            """ZeroMQ address of the coordinator."""
            self._ledger = RunLedger(self._folder / "ledger.jsonl", say)
        except (OSError, ValueError):
            self.close()
            raise
        self._write_contract()
        journal = Journal(self._ledger, config.attempt)
        self._coordinator = Coordinator(
            contract,
            world_size=config.world_size,
            num_nodes=config.num_nodes,
            journal=journal,
            send=self._listener.send,
            earlier_rollbacks=earlier_rollbacks(self._folder / "ledger.jsonl"),
            earlier_fault=(
                earlier_fault(self._folder / "ledger.jsonl") if config.is_restart else None
            ),
            adviser=None if self._policy is None else self._adviser(self._policy, config),
            origin=config.origin,
        )
        if self._policy is not None:
            _tell(self._policy, journal)

    def _adviser(self, policy: "PolicyProcess", config: MonitorConfig) -> Adviser:
        facts: dict[str, str | int | bool] = {
            **metadata_of(self._contract),
            "run_id": self._folder.name,
            "attempt": config.attempt,
            "world_size": config.world_size,
            "num_nodes": config.num_nodes,
        }
        return Adviser(policy, self._contract, facts)

    @property
    def is_finished(self) -> bool:
        """Whether the last line is written."""
        return self._coordinator.is_finished

    def watch(self, events: Events) -> None:
        """Lets the sockets be watched."""
        events.watch(self._listener.gatekeeper, self._listener.admit)
        events.watch(self._listener.events, self._count_strangers)
        events.watch(self._listener.socket, self._hear_nodes)
        if self._policy is not None:
            events.watch(self._policy.fileno(), self._hear_policy)

    def on_tick(self, now_s: float) -> None:
        """Time passes."""
        self._coordinator.on_tick(now_s)
        if now_s - self._flushed_s > FLUSH_EVERY_S and not self.is_finished:
            self._flushed_s = now_s
            self._ledger.flush()
            self._write_contract()

    @property
    def is_busy(self) -> bool:
        """Whether something is under way whose time must not be missed."""
        return self._coordinator.is_waiting_for_policy

    def look_closely(self, now_s: float) -> None:
        """Looks at what must not wait for the next tick; called often while ``is_busy``."""
        if self.is_busy:
            self._coordinator.on_policy(now_s)

    def tell(self, message: str) -> None:
        """Writes down that something went wrong in this monitor."""
        self._coordinator.on_trouble(message)

    def close(self) -> None:
        """Closes the port; the ledger is closed by the coordinator's last line."""
        self._listener.close()
        if self._policy is not None:
            self._policy.close()

    def let_go(self) -> None:
        """Lets another job have the run, when port and sockets are closed."""
        self._ledger.close()
        self._ledger.let_go()

    def _hear_nodes(self) -> None:
        for _ in range(_MAX_MESSAGES):
            heard = self._listener.receive()
            if heard is None:
                return
            self._coordinator.on_message(*heard, monotonic())

    def _hear_policy(self) -> None:
        self._coordinator.on_policy(monotonic())

    def _count_strangers(self) -> None:
        self._coordinator.on_strangers(self._listener.count_strangers())

    def _write_contract(self) -> None:
        """Writes the contract as it is in force; a full disk is tried again later."""
        # If it fails, the ledger, which lies in the same folder, has told of it.
        self._is_contract_written = self._is_contract_written or (
            save_contract(self._folder, self._contract) and self._save_policy()
        )

    def _save_policy(self) -> bool:
        if self._policy is None or self._policy.text is None:
            return True
        return save_text(self._folder / POLICY_COPY, self._policy.text)


def _policy_of(contract: Contract) -> "PolicyProcess | None":
    if contract.policy is None:
        return None
    # Late: most runs have none, and a monitor is to stay small.
    from slav1.policy.process import PolicyProcess

    return PolicyProcess.open(contract.policy)


def _tell(policy: "PolicyProcess", journal: Journal) -> None:
    """Writes down who is asked about breaches."""
    problem = policy.first_problem
    journal.note(
        "notice",
        f"Policy {policy.name} is asked about breaches: {policy.query}, within "
        f"{policy.settings.deadline_ms} ms."
        + ("" if problem is None else f" At the first try: {problem} It will be tried again."),
        evidence={
            "policy": policy.name,
            "query": policy.query,
            "sha256": policy.digest,
            "deadline_ms": policy.settings.deadline_ms,
            "policy_problem": problem,
        },
    )
