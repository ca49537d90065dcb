"""Endings that can wait for the next good checkpoint, so that little work is lost."""

from dataclasses import replace
from typing import NamedTuple

from slav1.breach import Breach
from slav1.decision import Action

_THAT_WAIT = frozenset({Action.STOP, Action.RESTART})


class Waiting(NamedTuple):
    """An action that is put off."""

    action: Action
    breach: Breach
    until_s: float
    """When it is taken at the latest, on the coordinator's monotonic clock, in seconds."""


def may_wait_s(breach: Breach) -> float:
    """How long what is done about a breach may be put off, in seconds: what its detector
    says in ``evidence.may_wait_s``, 0 if it says nothing."""
    allowed = breach.evidence.get("may_wait_s")
    is_number = isinstance(allowed, int | float) and not isinstance(allowed, bool)
    return max(0.0, float(allowed)) if is_number else 0.0  # type: ignore[arg-type]


class AfterCommit:
    """Holds actions back until a checkpoint is committed, or until there is no more time.

    Pure: time is passed in.
    """

    def __init__(self) -> None:
        """Starts with nothing put off."""
        self._waiting: dict[tuple[str, int | None], Waiting] = {}

    def takes(self, action: Action, breach: Breach, now_s: float) -> Waiting | None:
        """Puts an action off if it ends training and its reason allows to wait.

        Args:
            action: What is to be done.
            breach: Why.
            now_s: When it was found, on the coordinator's monotonic clock, in seconds.

        Returns:
            What is put off now; None if it has to be done at once.
        """
        allowed_s = may_wait_s(breach)
        if action not in _THAT_WAIT or not allowed_s > 0.0:
            return None
        key = breach.rule, breach.rank
        until_s = now_s + allowed_s
        if key in self._waiting:
            until_s = min(until_s, self._waiting[key].until_s)
        self._waiting[key] = Waiting(action, breach, until_s)
        return self._waiting[key]

    def forget(self, rule: str, rank: int | None) -> None:
        """The reason is gone: what was put off because of it is dropped."""
        self._waiting.pop((rule, rank), None)

    def on_commit(self, step: int | None) -> list[Waiting]:
        """A checkpoint was committed: everything that waited is due.

        Args:
            step: Last step that it contains; None if that is not known.
        """
        of = "" if step is None else f" of step {step}"
        due = list(self._waiting.values())
        self._waiting.clear()
        return [
            each._replace(
                breach=replace(
                    each.breach,
                    message=f"{each.breach.message} The checkpoint{of} has just been committed.",
                )
            )
            for each in due
        ]

    def on_tick(self, now_s: float) -> list[Waiting]:
        """Time passes: what has waited for as long as it may is due."""
        due = [key for key, each in self._waiting.items() if now_s >= each.until_s]
        return [self._waiting.pop(key) for key in due]
