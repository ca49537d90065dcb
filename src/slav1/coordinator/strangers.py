"""Counting callers that are not of this job, without a line for each of them."""

QUIET_S = 2.0
"""A burst is over when nobody has knocked for so long, in seconds."""

LONGEST_S = 60.0
"""A burst that does not end is told of after so long, in seconds; then after twice as
long, and so on, up to an hour."""

_LONGEST_OF_ALL_S = 3600.0


class Strangers:
    """Puts knocks together to bursts. Time is passed in."""

    def __init__(self) -> None:
        """Starts with nobody at the door."""
        self._num = 0
        self._began_s = 0.0
        self._last_s = 0.0
        self._limit_s = LONGEST_S

    def add(self, num_new: int, now_s: float) -> None:
        """So many were turned away just now."""
        if num_new == 0:
            return
        if self._num == 0:
            self._began_s = now_s
            if now_s - self._last_s > QUIET_S:
                self._limit_s = LONGEST_S
        self._num += num_new
        self._last_s = now_s

    def take_burst(self, now_s: float, *, is_last: bool = False) -> int:
        """Returns how many a burst had that is to be told of now; 0 if none is.

        Args:
            now_s: Any clock that never goes back, in seconds.
            is_last: Whether nobody will ask again, so that a burst counts as over.
        """
        if self._num == 0:
            return 0
        is_long = now_s - self._began_s > self._limit_s
        if not (is_last or is_long or now_s - self._last_s > QUIET_S):
            return 0
        if is_long:
            self._limit_s = min(2 * self._limit_s, _LONGEST_OF_ALL_S)
        num, self._num = self._num, 0
        return num
