"""Folders whose host takes everything in them for a checkpoint."""

from slav1.checkpoint._commit import sweep
from slav1.checkpoint._disk import Disk
from slav1.checkpoint._names import Writer, beside, recognise, rejected_name
from slav1.checkpoint.workshop import workshop_of


def test_with_a_workshop_nothing_of_ours_lies_among_the_checkpoints(tmp_path):
    """
    What is being made, and what was rejected, lies in the folder's workshop if there is one,
    and is known for what it belongs to; what a dead writer left there is cleared away.
    """
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    me = Writer.of_this_process("run")
    dead = Writer(run=me.run, boot="0" * 8, pid=1, started=0)
    target = folder / "checkpoint_3"
    assert beside(target, "new", me, 1, 5).parent == folder

    workshop_of(folder).mkdir()
    left = beside(target, "new", dead, 1, 5)
    left.mkdir()
    kept = rejected_name(folder / "checkpoint_2")
    kept.mkdir()
    found = recognise(left)

    assert left.parent == kept.parent == workshop_of(folder)
    assert found is not None and found.target == target
    assert sweep(folder, me, Disk()) == [(target, 5)]
    assert [path.name for path in workshop_of(folder).iterdir()] == [kept.name]
