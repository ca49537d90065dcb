"""The trainer's end of the scheduled decision, one call at a time, with the monitor's."""

import timeit
from collections.abc import Callable

import pytest

from slav1.decision import Action
from slav1.monitor.hold import (
    SETTLE_S,
    acknowledged_step,
    has_carried_out,
    hold,
    publish,
    release,
)
from slav1.recorder.command import ALIVE_CHECK_S, LONGEST_DELAY_S, CommandReader
from slav1.recorder.layout import NUM_WORDS, Word


class RecordedWords:
    """Words that remember how they were used."""

    def __init__(self) -> None:
        self.values = [0] * NUM_WORDS
        self.accesses: list[tuple[str, Word]] = []

    def __getitem__(self, index: int) -> int:
        self.accesses.append(("read", Word(index)))
        return self.values[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.accesses.append(("write", Word(index)))
        self.values[index] = value


class Pauses:
    """Instead of time passing: what happens in each pause, in order."""

    def __init__(self, *happenings: Callable[[], object]) -> None:
        self.happenings = list(happenings)
        self.lengths_s: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.lengths_s.append(seconds)
        if self.happenings:
            self.happenings.pop(0)()


def no_pause(_seconds: float) -> None:
    return


def nothing() -> None:
    return


@pytest.fixture
def words() -> RecordedWords:
    return RecordedWords()


def reader_of(words: RecordedWords, *happenings: Callable[[], object]) -> CommandReader:
    return CommandReader(words, is_monitor_alive=lambda: True, sleep=Pauses(*happenings))


def test_boundary_costs_two_accesses(words: RecordedWords) -> None:
    """
    Without a decision a boundary writes the step that is entered, then reads the hold,
    in this order, and does nothing else.
    """
    assert reader_of(words).at_boundary(6) is None

    assert words.accesses == [("write", Word.STEP), ("read", Word.HOLD)]
    assert words.values[Word.STEP] == 7


def test_boundary_is_cheap() -> None:
    """
    A boundary takes a small part of the 5 microseconds a step that the recorder may take.
    """
    reader = CommandReader(memoryview(bytearray(NUM_WORDS * 8)).cast("q"), lambda: True)

    seconds = min(timeit.repeat(lambda: reader.at_boundary(6), number=2_000, repeat=20))

    assert seconds / 2_000 < 2e-6


def test_waits_for_the_schedule_and_acts_in_its_step(words: RecordedWords) -> None:
    """
    A rank that sees the hold stands still until the schedule is there, and acts at once
    if the schedule is for the step that just ended.
    """
    reader = reader_of(words, nothing, lambda: publish([words], 1, 6, Action.STOP))
    hold([words], 1, no_pause)

    assert reader.at_boundary(6) is Action.STOP
    assert reader.number == 1
    assert not has_carried_out(words, 1)

    reader.confirm()
    assert has_carried_out(words, 1)


@pytest.mark.parametrize(("schedule_step", "acts_at"), [(7, 7), (8, 9), (9, 9)])
def test_acts_at_the_first_boundary_from_its_step_on(
    words: RecordedWords, schedule_step: int, acts_at: int
) -> None:
    """
    A rank goes on until the scheduled step has ended, also where steps jump.
    """
    reader = reader_of(words)
    hold([words], 1, no_pause)
    publish([words], 1, schedule_step, Action.SNAPSHOT)

    actions = {step: reader.at_boundary(step) for step in (5, 7, 9) if step <= acts_at}

    assert actions.pop(acts_at) is Action.SNAPSHOT
    assert set(actions.values()) <= {None}


def test_acts_once(words: RecordedWords) -> None:
    """
    After it was handed out an action is not handed out again, whether confirmed or not.
    """
    reader = reader_of(words)
    hold([words], 1, no_pause)
    publish([words], 1, 5, Action.SNAPSHOT)
    reader.at_boundary(5)

    assert reader.at_boundary(6) is None
    reader.confirm()
    assert reader.at_boundary(7) is None


def test_goes_on_when_the_decision_is_withdrawn(words: RecordedWords) -> None:
    """
    A rank that waits goes on when its hold is taken back.
    """
    reader = reader_of(words, nothing, lambda: release([words], 1))
    hold([words], 1, no_pause)

    assert reader.at_boundary(5) is None
    assert not reader.is_monitor_gone


def test_waits_on_for_the_decision_that_takes_over(words: RecordedWords) -> None:
    """
    A hold that changes its number while a rank waits makes it wait for the new schedule.
    """
    reader = reader_of(
        words,
        lambda: hold([words], 2, no_pause),
        nothing,
        lambda: publish([words], 2, 5, Action.STOP),
    )
    hold([words], 1, no_pause)

    assert reader.at_boundary(5) is Action.STOP
    assert reader.number == 2


def test_schedule_of_an_earlier_decision_is_not_taken(words: RecordedWords) -> None:
    """
    What is still written from the decision before does not count for this one.
    """
    reader = reader_of(words, nothing, lambda: release([words], 2))
    hold([words], 1, no_pause)
    publish([words], 1, 5, Action.SNAPSHOT)
    reader.at_boundary(5)
    reader.confirm()
    hold([words], 2, no_pause)

    assert reader.at_boundary(6) is None


def test_gives_up_when_the_monitor_has_ended(words: RecordedWords) -> None:
    """
    A rank whose monitor ended while it waited goes on, after 0.1 s at most and a bit,
    and never acts on that decision, even if a schedule turned up.
    """
    pauses = Pauses()
    reader = CommandReader(words, is_monitor_alive=lambda: False, sleep=pauses)
    hold([words], 1, no_pause)

    assert reader.at_boundary(5) is None
    assert reader.is_monitor_gone
    assert sum(pauses.lengths_s) < ALIVE_CHECK_S + LONGEST_DELAY_S

    publish([words], 1, 5, Action.STOP)
    assert reader.at_boundary(6) is None


def test_takes_what_the_monitor_published_last(words: RecordedWords) -> None:
    """
    A schedule that was published just before the monitor ended is carried out: other
    ranks may have seen it.
    """

    def publishes_and_ends() -> bool:
        publish([words], 1, 5, Action.STOP)
        return False

    reader = CommandReader(words, is_monitor_alive=publishes_and_ends, sleep=no_pause)
    hold([words], 1, no_pause)

    assert reader.at_boundary(5) is Action.STOP


def test_pauses_grow_from_short_to_bounded(words: RecordedWords) -> None:
    """
    A waiting rank looks again after 20 microseconds first, then less often, but at
    least each millisecond.
    """
    pauses = Pauses(*[nothing] * 20, lambda: release([words], 1))
    hold([words], 1, no_pause)

    CommandReader(words, lambda: True, pauses).at_boundary(5)

    assert pauses.lengths_s[0] == pytest.approx(20e-6)
    assert pauses.lengths_s == sorted(pauses.lengths_s)
    assert pauses.lengths_s[-1] == pytest.approx(1e-3)


def test_confirming_nothing_is_a_mistake(words: RecordedWords) -> None:
    """
    Confirming without an action that was handed out is refused.
    """
    with pytest.raises(AssertionError, match="at_boundary"):
        reader_of(words).confirm()


def test_hold_pauses_before_steps_are_read(words: RecordedWords) -> None:
    """
    The monitor sets the hold of all its ranks first and pauses after that.
    """
    other = RecordedWords()
    seen: list[list[int]] = []

    def look(seconds: float) -> None:
        seen.append([words.values[Word.HOLD], other.values[Word.HOLD]])
        assert seconds == SETTLE_S

    hold([words, other], 3, look)

    assert seen == [[3, 3]]


def test_largest_step_of_the_node_is_acknowledged(words: RecordedWords) -> None:
    """
    A node answers with the step of its rank that is furthest.
    """
    other = RecordedWords()
    words[Word.STEP], other[Word.STEP] = 41, 42

    assert acknowledged_step([words, other]) == 42


def test_schedule_is_announced_last(words: RecordedWords) -> None:
    """
    The number that makes a schedule count is written after its step and action.
    """
    publish([words], 1, 5, Action.STOP)

    assert words.accesses[-1] == ("write", Word.SCHEDULED)
    assert len(words.accesses) == 3


def test_late_release_leaves_the_next_hold(words: RecordedWords) -> None:
    """
    Releasing a decision that is over does not release the one being made.
    """
    hold([words], 2, no_pause)
    release([words], 1)

    assert words.values[Word.HOLD] == 2


def test_knows_of_a_decision_until_its_action_is_handed_out(words: RecordedWords) -> None:
    """
    From the monitor's hold to the boundary at which the rank acts, a decision is under way;
    not before, and not after, though the hold stays.
    """
    reader = reader_of(words)
    seen = [reader.is_deciding]
    hold([words], 1, no_pause)
    seen.append(reader.is_deciding)
    publish([words], number=1, step=0, action=Action.STOP)
    reader.at_boundary(0)

    assert [*seen, reader.is_deciding] == [False, True, False]
