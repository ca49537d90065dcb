"""What ranks measured in the steps that a ledger tells of."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from slav1.cli._errors import CommandLineError
from slav1.cli._output import print_note
from slav1.cli._run_folder import samples_in
from slav1.ledger import Entry
from slav1.sample import Sample

_Pass = dict[int, Sample]


class PastSteps:
    """The flight rings of all starts of a run, as a walk along its ledger comes by them.

    A step that was made again after a rollback stands in a ring twice; which of the two a
    line is about follows from the rollbacks before it.
    """

    def __init__(self, run: Path, entries: Sequence[Entry]) -> None:
        """Starts before the first line.

        Args:
            run: The run's folder.
            entries: Its ledger, all starts.
        """
        self._run = run
        self._last_attempt = max((entry.attempt for entry in entries), default=0)
        self._num_back = Counter(entry.attempt for entry in entries if _went_back(entry))
        self._passes: dict[int, list[_Pass]] = {}
        self._attempt: int | None = None
        self._num_back_left = 0

    def pass_by(self, entry: Entry) -> None:
        """The walk comes to the next line; says on stderr if a ring can't be read."""
        if entry.attempt != self._attempt:
            self._begin(entry.attempt)
        elif _went_back(entry):
            self._num_back_left -= 1

    def at(self, step: int | None) -> list[Sample]:
        """The samples of a step at this place in the ledger; none if they are not known."""
        if step is None:
            return []
        num_later = self._num_back_left
        found = [
            passes[-1 - num_later].get(step)
            for passes in self._passes.values()
            if num_later < len(passes)
        ]
        return [sample for sample in found if sample is not None]

    def _begin(self, attempt: int) -> None:
        self._attempt, self._num_back_left = attempt, self._num_back[attempt]
        is_last = attempt == self._last_attempt
        folder = self._run if is_last else self._run / f"attempt-{attempt}"
        try:
            passes = {rank: _passes(samples) for rank, samples in samples_in(folder).items()}
        except CommandLineError as error:
            print_note(f"{error} What was measured in these steps is not known.")
            passes = {}
        # One that goes back more often than the ledger knows does not say which is which.
        self._passes = {
            rank: found for rank, found in passes.items() if len(found) <= 1 + self._num_back_left
        }


def _went_back(entry: Entry) -> bool:
    return entry.kind == "restored" and entry.evidence.get("how") == "rollback"


def _passes(samples: Sequence[Sample]) -> list[_Pass]:
    """Splits the samples of a rank where it went back."""
    found: list[_Pass] = [{sample.step: sample for sample in samples[:1]}]
    for before, after in pairwise(samples):
        if after.step <= before.step:
            found.append({})
        found[-1][after.step] = after
    return found
