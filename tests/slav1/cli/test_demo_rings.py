"""Looking into the blocks of running ranks from outside."""

import os

import pytest

from slav1.cli._demo_rings import Rings, RingView
from slav1.phase import Phase
from slav1.recorder import Block, Recorder
from slav1.recorder.block import BlockVersionError
from slav1.recorder.layout import HAS_LOSS, Word


@pytest.fixture
def blocks():
    made = [Block.create(rank=rank, num_slots=64) for rank in (0, 1)]
    yield made
    for block in made:
        block.close()


@pytest.fixture
def rings():
    made = Rings()
    yield made
    made.close()


def test_blocks_of_a_process_are_found_by_its_id_alone(blocks, rings):
    """
    Every block that a process holds is found through its descriptors, and shows where
    its rank is at that moment.
    """
    recorders = [Recorder(block) for block in blocks]
    rings.find([os.getpid()])
    blocks[1].words[Word.STEP] = 7
    recorders[1].enter(Phase.BACKWARD)

    now = rings.now()

    assert len(rings) == 2
    assert [(rank.rank, rank.step, rank.phase) for rank in now] == [
        (0, 0, Phase.SETUP),
        (1, 7, Phase.BACKWARD),
    ]


def test_losses_are_the_mean_over_ranks_that_finished_the_step(blocks, rings):
    """
    A step counts once all ranks have finished it; its loss is their mean.
    """
    first, second = (Recorder(block) for block in blocks)
    rings.find([os.getpid()])
    first.publish(first.end_step(0, loss=4.0, flags=HAS_LOSS))
    second.publish(second.end_step(0, loss=2.0, flags=HAS_LOSS))
    first.publish(first.end_step(1, loss=9.0, flags=HAS_LOSS))

    rings.read()

    assert rings.mean_losses() == [3.0]
    assert rings.end_of_step_s(rank=0, step=1) is not None
    assert rings.end_of_step_s(rank=1, step=1) is None


def test_a_process_that_is_gone_has_no_blocks(rings):
    """
    Looking at a process that does not exist finds nothing and is no error.
    """
    rings.find([2**22 + 1])

    assert len(rings) == 0


def test_what_is_no_block_is_refused(tmp_path):
    """
    A file of another kind, or too short for a header, is not taken for a block.
    """
    for content in (b"", b"x" * 4096):
        path = tmp_path / "slav1-ring"
        path.write_bytes(content)
        with path.open("rb") as file, pytest.raises(BlockVersionError):
            RingView(file.fileno())
