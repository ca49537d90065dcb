"""The trainer's end: phases, times and records, as the monitor reads them."""

import time
from collections.abc import Iterator

import pytest

from slav1.phase import Phase
from slav1.recorder import Block, Recorder, RingReader, layout
from slav1.recorder.layout import Word


@pytest.fixture
def block() -> Iterator[Block]:
    block = Block.create(rank=3, num_slots=4)
    yield block
    block.close()


def busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_a_resumed_rank_says_where_it_is_before_its_first_boundary(block):
    """
    A rank that goes on at step 7 is in step 7 from the start, not in step 0.
    """
    Recorder(block).starts_at(7)

    assert block.words[Word.STEP] == 7


def test_every_phase_change_is_seen(block):
    """
    Entering a phase changes the progress word, also when it is the same phase again.
    """
    recorder = Recorder(block)
    seen = []
    for phase in (Phase.DATA, Phase.FORWARD, Phase.FORWARD):
        recorder.enter(phase)
        seen.append(block.words[Word.PHASE])

    assert len(set(seen)) == 3
    assert [word & 255 for word in seen] == [Phase.DATA, Phase.FORWARD, Phase.FORWARD]


def test_a_record_tells_where_the_step_went(block):
    """
    Each phase gets the time that was spent in it, micro-batches added up, and the step as
    a whole no less than all of them.
    """
    recorder = Recorder(block)
    for _ in range(2):
        recorder.enter(Phase.DATA)
        busy(0.004)
        recorder.enter(Phase.FORWARD)
        busy(0.008)
    recorder.enter(Phase.OPTIMIZER)
    recorder.publish(recorder.end_step(5, loss=1.5, batch=9, flags=layout.HAS_LOSS))

    (sample,) = RingReader(block.words, block.records).new_samples()
    assert (sample.rank, sample.step, sample.loss, sample.batch) == (3, 5, 1.5, 9)
    assert sample.data_s >= 0.008
    assert sample.forward_s >= 0.016
    assert sample.step_time_s >= sample.data_s + sample.forward_s
    assert sample.backward_s is None
    assert sample.sync_s is None


def test_own_work_and_waiting_are_told_apart(block):
    """
    What comes after the last gradient is waiting for peers, and no part of the backward.
    """
    recorder = Recorder(block)
    recorder.enter_synced_backward()
    busy(0.004)
    recorder.own_work_ends()
    busy(0.012)
    recorder.leave_synced_backward(Phase.OPTIMIZER)
    recorder.publish(recorder.end_step(0))

    (sample,) = RingReader(block.words, block.records).new_samples()
    assert 0.004 <= sample.backward_s < sample.sync_s
    assert sample.sync_s >= 0.012
    assert sample.self_time_s < sample.step_time_s


def test_collectives_are_counted_at_both_ends(block):
    """
    While a rank waits in its gradient sync one more is started than completed.
    """
    recorder = Recorder(block)
    recorder.enter_synced_backward()
    waiting = block.words[Word.COLLECTIVES_STARTED], block.words[Word.COLLECTIVES_COMPLETED]
    recorder.leave_synced_backward(Phase.OPTIMIZER)

    assert waiting == (1, 0)
    assert block.words[Word.COLLECTIVES_COMPLETED] == 1


def test_a_late_loss_is_shown_with_its_own_step(block):
    """
    A record is not shown before it is published, and a loss that comes late lands in it.
    """
    recorder = Recorder(block)
    reader = RingReader(block.words, block.records)
    number = recorder.end_step(0, flags=layout.IS_WARMUP)
    recorder.end_step(1)
    before = list(reader.new_samples())
    recorder.add_late(number, loss=2.5, flags=layout.HAS_LOSS)
    recorder.publish(number)
    (sample,) = reader.new_samples()

    assert before == []
    assert (sample.step, sample.loss, sample.is_warmup) == (0, 2.5, True)


def test_an_evaluation_is_no_part_of_a_step(block):
    """
    Time before ``forget_times`` is in no record.
    """
    recorder = Recorder(block)
    recorder.enter(Phase.EVALUATION)
    busy(0.02)
    recorder.enter(Phase.BETWEEN)
    recorder.forget_times()
    recorder.publish(recorder.end_step(0))

    (sample,) = RingReader(block.words, block.records).new_samples()
    assert sample.step_time_s < 0.02
