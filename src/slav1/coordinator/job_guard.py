"""The rules that need all ranks: samples of one step put together and judged."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slav1.breach import Breach
from slav1.contract import Contract, Mode
from slav1.coordinator.messages import StateAnswer, StateAsked
from slav1.coordinator.rounds import Rounds
from slav1.coordinator.state_requests import StateRequests
from slav1.guard import Guard
from slav1.sample import Round, Sample


class JobGuard:
    """Runs the detectors of rounds and hands their memories to checkpoints."""

    def __init__(self, contract: Contract, world_size: int) -> None:
        """Starts with nothing seen.

        Args:
            contract: The contract in force.
            world_size: Ranks of the job.
        """
        self._rounds = Rounds(world_size)
        self._requests = StateRequests()
        self._guard = Guard(
            {
                name: rule.detector
                for name, rule in contract.rules.items()
                if Round in rule.detector.WATCHES and rule.mode is not Mode.OFF
            }
        )

    @property
    def num_seen(self) -> Mapping[str, int]:
        """Rounds that each rule has seen."""
        return self._guard.num_seen

    @property
    def num_dropped(self) -> int:
        """Steps given up because a sample never came."""
        return self._rounds.num_dropped

    def observe(self, samples: Iterable[Sample]) -> list[Breach]:
        """Takes in samples; returns what the rounds show that they complete."""
        found = []
        for sample in samples:
            complete = self._rounds.add(sample)
            if complete is not None:
                found += self._guard.observe(complete)
        return found

    def restore(self, state: Any) -> list[str]:
        """Goes on from saved memories; returns the rules whose memory does not fit."""
        return self._guard.load_state_dict(state)

    def ask(self, node: int, message: StateAsked, now_s: float) -> None:
        """A rank wants the memories for a checkpoint."""
        self._requests.add(node, message, now_s)

    def answers(self, now_s: float) -> Iterator[tuple[int, StateAnswer]]:
        """Yields the answers that are due, each with the node it goes to."""
        for node, asked in self._requests.take(self._rounds.newest, now_s):
            yield (
                node,
                StateAnswer(rank=asked.rank, number=asked.number, state=self._guard.state_dict()),
            )
