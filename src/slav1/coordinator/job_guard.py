"""The rules that need all ranks: samples of one step put together, saves, judged."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from slav1.breach import Breach
from slav1.contract import Contract, Mode
from slav1.coordinator.messages import (
    RankDigests,
    RankNote,
    RankReplicas,
    StateAnswer,
    StateAsked,
)
from slav1.coordinator.replicas import ReplicaSets
from slav1.coordinator.rounds import Rounds
from slav1.coordinator.state_requests import StateRequests
from slav1.detectors._audits import audit_in
from slav1.detectors._detector import Detector, is_of_job
from slav1.detectors._reruns import rerun_in
from slav1.guard import Guard
from slav1.sample import Pulse, Replicas, Round, Sample, Usage
from slav1.saves import save_in


def ends_by_going_back(detector: Detector, *, is_first: bool, is_own: bool) -> bool:
    """Whether an open incident of a rule ends when a rank has gone back to a checkpoint.

    Args:
        detector: What finds the rule's breaches.
        is_first: Whether it is the first rank to come back.
        is_own: Whether it is the rank that the incident is about.
    """
    watches = set(detector.WATCHES)
    return not {Pulse, Usage} & watches and (is_first if {Round, Replicas} & watches else is_own)


class JobGuard:
    """Runs the detectors of rounds and saves, and hands their memories to checkpoints."""

    def __init__(self, contract: Contract, world_size: int) -> None:
        """Starts with nothing seen.

        Args:
            contract: The contract in force.
            world_size: Ranks of the job.
        """
        self._rounds = Rounds(world_size)
        self._requests = StateRequests()
        self._replicas = ReplicaSets()
        # How often each rank went back, and how often any did.
        self._turns: Counter[int] = Counter()
        self._turn = 0
        self._guard = Guard(
            {
                name: rule.detector
                for name, rule in contract.rules.items()
                if is_of_job(rule.detector) and rule.mode is not Mode.OFF
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

    @property
    def newest_step(self) -> int:
        """Last step that all ranks' samples are there of, since they last went back."""
        return self._rounds.newest

    def observe(self, samples: Iterable[Sample]) -> list[Breach]:
        """Takes in samples; returns what the rounds show that they complete.

        While ranks go back, samples of those that are not there yet belong to steps that
        are done again.
        """
        found = []
        for sample in samples:
            if self._turns[sample.rank] < self._turn:
                continue
            complete = self._rounds.add(sample)
            if complete is not None:
                found += self._guard.observe(complete)
        return found

    def on_note(self, note: RankNote, now_s: float) -> list[Breach]:
        """Takes in a ledger line of a rank; returns what the save, audit or second run of a
        micro-batch it tells of shows."""
        event = (
            save_in(note.kind, note.step, note.evidence, time_s=now_s)
            or audit_in(note.rule, note.step, note.evidence, time_s=now_s)
            or rerun_in(note.rule, note.rank, note.step, note.evidence)
        )
        return [] if event is None else self._guard.observe(event)

    def on_replicas(self, message: RankReplicas) -> list[str]:
        """A rank says of what it holds copies; returns what is to be told of it."""
        return self._replicas.declare(message)

    def on_digests(self, message: RankDigests) -> tuple[list[str], list[Breach]]:
        """Takes in what a rank's copies hold; returns what is to be told of it, and what the
        comparison shows."""
        if self._turns[message.rank] < self._turn:
            return [], []
        told = self._replicas.unlike(message)
        compared = self._replicas.add(message)
        return told, [breach for event in compared for breach in self._guard.observe(event)]

    def on_rank_back(self, rank: int, to_step: int, state: Any) -> tuple[bool, list[str]]:
        """A rank went back to a checkpoint; its samples from now on are new ones.

        Args:
            rank: Global rank.
            to_step: Last step that the checkpoint contains.
            state: Memories of the checkpoint to go on from; None to start afresh.

        Returns:
            Whether it is the first rank to come back; and the rules whose memory does
            not fit.
        """
        self._turns[rank] += 1
        is_first = self._turns[rank] > self._turn
        if is_first:
            self._turn = self._turns[rank]
            self._rounds.restart(to_step)
            self._replicas.restart()
            self._guard.forget_steps(None)
            self._requests.wait_for_none()
        return is_first, [] if state is None else self.restore(state)

    def restore(self, state: Any) -> list[str]:
        """Goes on from saved memories; returns the rules whose memory does not fit."""
        return self._guard.load_state_dict(state)

    def ask(self, node: int, message: StateAsked, now_s: float) -> None:
        """A rank wants the memories for a checkpoint."""
        if self._turns[message.rank] < self._turn:
            # Its step is done again by those who are back: no round of it will be complete.
            message = msgspec.structs.replace(message, step=None)
        self._requests.add(node, message, now_s)

    def answers(self, now_s: float) -> Iterator[tuple[int, StateAnswer]]:
        """Yields the answers that are due, each with the node it goes to."""
        for node, asked in self._requests.take(self._rounds.newest, now_s):
            yield (
                node,
                StateAnswer(rank=asked.rank, number=asked.number, state=self._guard.state_dict()),
            )
