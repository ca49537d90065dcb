"""How often a run may go back: counted over all of its starts."""

from collections.abc import Iterable
from pathlib import Path

from slav1.breach import Breach
from slav1.contract import CheckpointSettings
from slav1.ledger import parse_ledger


class Rollbacks:
    """Keeps the steps at which a run was sent back."""

    def __init__(self, settings: CheckpointSettings, earlier: Iterable[int] = ()) -> None:
        """Starts with those of earlier starts of the run.

        Args:
            settings: How many are allowed within how many steps.
            earlier: Their steps, as :func:`earlier_rollbacks` reads them.
        """
        self._most = settings.max_rollbacks
        self._window_steps = settings.rollback_window_steps
        self._steps = list(earlier)

    def add(self, step: int) -> None:
        """All ranks are sent back at the end of ``step``."""
        self._steps.append(step)

    @property
    def num_all(self) -> int:
        """Rollbacks of the run so far."""
        return len(self._steps)

    def num_within(self, step: int | None) -> int:
        """Rollbacks that count against one at ``step``; all if that is not known."""
        # Whatever lies after this step was done again since: it counts as well.
        since = float("-inf") if step is None else step - self._window_steps
        return sum(1 for each in self._steps if each > since)

    def why_not(self, step: int | None) -> str | None:
        """Says why no further rollback is allowed; None if it is.

        Args:
            step: Step that gives rise to it; None if that is not known.
        """
        number = 1 + self.num_within(step)
        if number <= self._most:
            return None
        return (
            f"This would be rollback {number} within {self._window_steps} steps, and at most "
            f"{self._most} are allowed (checkpoint.max_rollbacks, "
            "checkpoint.rollback_window_steps): training is stopped instead."
        )


def earlier_rollbacks(ledger: Path) -> list[int]:
    """Steps at which earlier starts of a run were sent back; none if there is no ledger."""
    try:
        with ledger.open("rb") as file:
            lines = [line for line in file if b'"rollback"' in line and b'"decision"' in line]
    except OSError:
        return []
    entries, _ = parse_ledger(b"".join(lines))
    return [
        entry.step
        for entry in entries
        if entry.kind == "decision" and entry.action == "rollback" and entry.step is not None
    ]


def bad_steps(breach: Breach) -> tuple[int | None, int | None]:
    """First and last step that a breach is about.

    Returns:
        The step with which the trouble began, as far as the breach knows, and the one at
        which it was found, or None if the batches of these steps are good; otherwise what
        lies between is not worth keeping.
    """
    alarm = breach.step
    if alarm is None:
        return None, None
    begun = breach.evidence.get("first_step")
    if isinstance(begun, int) and not isinstance(begun, bool):
        if breach.evidence.get("are_batches_good") is True:
            return min(begun, alarm), None
        return min(begun, alarm), alarm
    if breach.evidence.get("first") == "parameters":
        # They were broken by the update of the step before.
        return max(0, alarm - 1), alarm
    return alarm, alarm
