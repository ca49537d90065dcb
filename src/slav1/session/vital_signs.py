"""Whether the monitor that watches a rank lives, as that rank can tell."""

from time import monotonic_ns

from slav1.recorder.command import Words
from slav1.recorder.layout import Word
from slav1.session.link import MonitorLink

BEAT_LIMIT_S = 30.0
"""How long a rank that is held waits for a sign of life of its monitor, in seconds. Much
longer than a monitor holds ranks without a schedule."""

_BEAT_LIMIT_NS = int(BEAT_LIMIT_S * 1e9)
_NEW_WAIT_NS = int(1e9)


class VitalSigns:
    """A monitor is dead when its end of the link is closed, and as good as dead when it
    holds a rank and gives no sign of life."""

    def __init__(self, link: MonitorLink, words: Words) -> None:
        """Starts with a monitor that lives.

        Args:
            link: The connection to the monitor.
            words: Words of this rank's block; the monitor counts its looks in one of them.
        """
        self._link = link
        self._words = words
        self._is_lost = False
        self._beat, self._beat_at_ns, self._asked_at_ns = 0, 0, 0

    def is_alive(self) -> bool:
        """Whether the monitor still runs; False for good once it does not."""
        if not self._is_lost:
            self._is_lost = not self._link.is_open()
        return not self._is_lost

    def does_beat(self) -> bool:
        """Whether a rank that is held should go on waiting for its monitor's word. Asked
        again and again while it waits."""
        now_ns, beat = monotonic_ns(), self._words[Word.BEAT]
        is_new_wait = now_ns - self._asked_at_ns > _NEW_WAIT_NS
        self._asked_at_ns = now_ns
        if is_new_wait or beat != self._beat:
            self._beat, self._beat_at_ns = beat, now_ns
        if now_ns - self._beat_at_ns > _BEAT_LIMIT_NS:
            # Stopped by somebody, most likely. Once given up, its word is not taken any more.
            self._is_lost = True
        return self.is_alive()
