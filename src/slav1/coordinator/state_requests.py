"""Who waits for the detectors' memories, and until which step they must reach."""

from slav1.coordinator.messages import StateAsked

LATEST_S = 1.0
"""How long an answer may wait for the samples of other ranks, in seconds."""


class StateRequests:
    """Holds a checkpoint's question back until the memories include its last step.

    The rank that asks has finished a step that its peers may be about to finish, and
    whose samples may still be on their way. Time is passed in.
    """

    def __init__(self) -> None:
        """Starts with none."""
        self._open: list[tuple[int, StateAsked, float]] = []

    def add(self, node: int, asked: StateAsked, now_s: float) -> None:
        """Takes in what a rank of ``node`` asks."""
        self._open.append((node, asked, now_s + LATEST_S))

    def wait_for_none(self) -> None:
        """Makes all questions due: the samples that they wait for are not coming any more."""
        self._open = [(node, asked, float("-inf")) for node, asked, _ in self._open]

    def take(self, newest_step: int, now_s: float) -> list[tuple[int, StateAsked]]:
        """Returns the questions to be answered now, each with the node it came from.

        Args:
            newest_step: Last step that all ranks' samples are there of; -1 if none.
            now_s: Monotonic clock, in seconds.
        """
        is_due = [
            asked.step is None or asked.step <= newest_step or now_s >= latest_s
            for _, asked, latest_s in self._open
        ]
        due = [each[:2] for each, is_now in zip(self._open, is_due, strict=True) if is_now]
        self._open = [each for each, is_now in zip(self._open, is_due, strict=True) if not is_now]
        return due
