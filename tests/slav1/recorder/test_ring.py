"""Reading rings: live, saved, lapped, cut, and of another version."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slav1.phase import Phase
from slav1.recorder import Block, Recorder, RingReader, layout
from slav1.recorder.block import BlockVersionError
from slav1.recorder.layout import HEADER_BYTES, RECORD, VERSION, Word, block_bytes
from slav1.recorder.ring import read_ring_file


@pytest.fixture
def block():
    made = Block.create(rank=3, num_slots=16)
    yield made
    made.close()


def write(recorder: Recorder, step: int) -> None:
    recorder.publish(recorder.end_step(step, loss=float(step), flags=layout.HAS_LOSS))


def reader_of(block: Block) -> RingReader:
    return RingReader(block.words, block.records)


@given(st.lists(st.integers(0, 40), max_size=10))
def test_each_step_comes_once_or_is_counted_as_lost(bursts):
    """
    However writer and reader take turns, every step is read once, in order, or counted as
    lost, and only those are lost that the ring had no room for.
    """
    block = Block.create(rank=3, num_slots=16)
    recorder, reader = Recorder(block), reader_of(block)
    seen, step, expected_lost = [], 0, 0
    for num in bursts:
        for _ in range(num):
            write(recorder, step)
            step += 1
        expected_lost += max(0, num - 16)
        seen += [sample.step for sample in reader.new_samples()]
    block.close()

    assert seen == sorted(set(seen))
    assert len(seen) + reader.num_lost == step
    assert reader.num_lost == expected_lost


def test_record_that_is_overwritten_while_it_is_read_is_lost(block):
    """
    A record whose number is not the one that was asked for is counted as lost, not handed
    out as something else.
    """
    recorder, reader = Recorder(block), reader_of(block)
    for step in range(5):
        write(recorder, step)
    struct.pack_into("=q", block.records, 2 * RECORD.size, 2 + 16)

    assert [sample.step for sample in reader.new_samples()] == [0, 1, 3, 4]
    assert reader.num_lost == 1


def test_record_that_is_not_shown_is_not_read(block):
    """
    A step whose loss is still on its way is not read before it is published, and then with
    the loss.
    """
    recorder, reader = Recorder(block), reader_of(block)
    number = recorder.end_step(0)
    assert list(reader.new_samples()) == []
    recorder.add_late(number, loss=2.5, flags=layout.HAS_LOSS)
    recorder.publish(number)
    (sample,) = reader.new_samples()

    assert sample.loss == 2.5 and sample.grad_norm is None


def test_what_was_not_measured_is_none(block):
    """
    Times, loss, norm and batch that were not measured are None; a loss that is no number
    is kept as it is.
    """
    recorder, reader = Recorder(block), reader_of(block)
    recorder.publish(recorder.end_step(0))
    flags = layout.HAS_LOSS | layout.LOSS_NON_FINITE | layout.IS_WARMUP
    recorder.publish(recorder.end_step(1, loss=math.nan, batch=4, flags=flags))
    nothing, spoilt = reader.new_samples()

    assert (nothing.loss, nothing.grad_norm, nothing.batch, nothing.sync_s) == (None,) * 4
    assert math.isnan(spoilt.loss) and spoilt.batch == 4
    assert spoilt.non_finite == ("loss",) and spoilt.is_warmup and not nothing.is_warmup


def test_saved_ring_reads_as_the_live_one(block, tmp_path):
    """
    A saved ring holds the samples that the live one holds.
    """
    recorder = Recorder(block)
    for step in range(20):
        write(recorder, step)
    block.save(tmp_path / "ring-3.bin")

    assert read_ring_file(tmp_path / "ring-3.bin") == list(reader_of(block).new_samples())


@pytest.mark.parametrize("num_bytes", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, block_bytes(16) - 1])
def test_cut_ring_is_refused_with_its_name(block, tmp_path, num_bytes):
    """
    A ring file that was cut anywhere is refused with its path and the reason.
    """
    path = tmp_path / "ring-3.bin"
    block.save(path)
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(BlockVersionError, match=r"ring-3\.bin can't be read: .*bytes"):
        read_ring_file(path)


def test_ring_of_another_version_says_what_to_do(block, tmp_path):
    """
    A ring of another version is refused with both versions and what to read it with.
    """
    path = tmp_path / "ring-3.bin"
    block.words[Word.VERSION] = VERSION + 1
    block.save(path)
    with pytest.raises(BlockVersionError, match=r"ring-3\.bin.*with the version that wrote it"):
        read_ring_file(path)


@given(st.binary(min_size=block_bytes(4), max_size=block_bytes(4)))
def test_spoilt_ring_reads_or_is_refused(tmp_path_factory, raw):
    """
    Whatever stands in a ring file, it is read or refused, and nothing else happens.
    """
    path = tmp_path_factory.getbasetemp() / "ring-9.bin"
    header = struct.pack("=4q", layout.MAGIC, VERSION, 9, 4)
    path.write_bytes(header + raw[len(header) :])

    assert len(read_ring_file(path)) <= 4
    path.write_bytes(raw)
    with pytest.raises(BlockVersionError):
        read_ring_file(path)


def test_recorder_divides_a_step_among_its_phases(block):
    """
    The times of a record are those of its phases, waiting for other ranks kept apart from
    own work, and together no longer than the step.
    """
    recorder, reader = Recorder(block), reader_of(block)
    for phase in (Phase.DATA, Phase.FORWARD):
        recorder.enter(int(phase))
    recorder.enter_synced_backward()
    recorder.own_work_ends()
    recorder.leave_synced_backward(int(Phase.OPTIMIZER))
    recorder.enter(int(Phase.BETWEEN))
    write(recorder, 0)
    (sample,) = reader.new_samples()
    parts = [sample.data_s, sample.forward_s, sample.backward_s, sample.sync_s, sample.optimizer_s]

    assert all(part is not None and part >= 0 for part in parts)
    assert sum(parts) <= sample.step_time_s
    assert block.words[Word.COLLECTIVES_STARTED] == block.words[Word.COLLECTIVES_COMPLETED] == 1
    assert block.words[Word.PHASE] & 255 == Phase.BETWEEN
    assert recorder.phase is Phase.BETWEEN and recorder.num_records == 1


def test_every_change_of_phase_is_progress(block):
    """
    Entering a phase again changes the word that progress is told by.
    """
    recorder = Recorder(block)
    seen = set()
    for _ in range(100):
        recorder.enter(int(Phase.EVALUATION))
        seen.add(block.words[Word.PHASE])

    assert len(seen) == 100
