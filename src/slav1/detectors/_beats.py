"""Pulses of any rate as one heartbeat a second."""

from typing import NamedTuple

from slav1.sample import Pulse

BEAT_S = 1.0
# Letters of a process that is stopped, and of one that does nothing any more.
STOPPED = frozenset("Tt")
_SILENT = STOPPED | frozenset("ZXx?")


class BeatClock(NamedTuple):
    """The second in hand."""

    began_s: float = 0.0
    num_pulses: int = 0
    num_answers: int = 0


def answers(pulse: Pulse) -> bool:
    """Whether the process could do something if it wanted to."""
    return pulse.is_alive and pulse.process_state not in _SILENT


def ticked(clock: BeatClock, pulse: Pulse) -> tuple[BeatClock, float | None]:
    """Takes in one pulse.

    Returns:
        The clock after it, and the share of answered pulses of the second that this
        pulse ends, from 0 to 1; None if it ends none. Seconds without any pulse, while
        the monitor itself was held up, are no beats at all.
    """
    num_answers = int(answers(pulse))
    age_s = pulse.time_s - clock.began_s
    if clock.num_pulses and 0.0 <= age_s < BEAT_S:
        return BeatClock(clock.began_s, clock.num_pulses + 1, clock.num_answers + num_answers), None
    share = clock.num_answers / clock.num_pulses if clock.num_pulses and age_s >= 0.0 else None
    return BeatClock(pulse.time_s, 1, num_answers), share
