"""Slowing saves beside training: the means that has an effect, and how much."""

import os
import threading
from pathlib import Path

import pytest

from slav1.checkpoint import Alone
from slav1.checkpoint.throttle import (
    PIECE_BYTES,
    Means,
    Throttle,
    Way,
    _begin,
    flush_slowly,
    way_for,
)

from ._shelves import facts, file_writer, shelf_of


class Machine:
    """A sysfs and procfs as some machine would show them, for the disk below ``folder``."""

    def __init__(self, folder: Path, scheduler: str) -> None:
        self.sys, self.proc, self.data = folder / "sys", folder / "proc", folder / "data"
        self.data.mkdir(parents=True)
        number = self.data.stat().st_dev
        self.number = f"{os.major(number)}:{os.minor(number)}"
        self.disk = self.sys / "devices" / "disk"
        (self.disk / "queue").mkdir(parents=True)
        (self.disk / "queue" / "scheduler").write_text(f"none [{scheduler}] other\n")
        (self.disk / "dev").write_text(f"{self.number}\n")
        (self.sys / "dev" / "block").mkdir(parents=True)
        (self.sys / "dev" / "block" / self.number).symlink_to(self.disk)
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text("0::/job\n")

    def with_cgroup(self) -> "Machine":
        group = self.sys / "fs" / "cgroup" / "job"
        group.mkdir(parents=True)
        (group.parent / "cgroup.controllers").write_text("io cpu\n")
        self.weight = group / "io.weight"
        self.weight.write_text("default 100\n8:0 200\n")
        return self

    def way(self) -> Way:
        return way_for(self.data, sys=self.sys, proc=self.proc)


def test_a_weight_is_chosen_only_where_it_has_an_effect(tmp_path):
    """
    A writable weight counts with a scheduler that heeds it or a cost model that is on for this
    very disk, and otherwise not.
    """
    assert Machine(tmp_path / "bfq", "bfq").with_cgroup().way().means is Means.WEIGHT
    deadline = Machine(tmp_path / "deadline", "mq-deadline").with_cgroup()
    assert deadline.way().means is not Means.WEIGHT
    qos = deadline.sys / "fs" / "cgroup" / "io.cost.qos"
    qos.write_text("1:99 enable=1\n")
    assert deadline.way().means is not Means.WEIGHT
    qos.write_text(f"{deadline.number} enable=1 ctrl=auto\n")
    assert deadline.way().means is Means.WEIGHT


@pytest.mark.parametrize(
    ("scheduler", "means"), [("bfq", Means.PRIORITY), ("kyber", Means.RATE), ("none", Means.RATE)]
)
def test_without_a_weight_the_scheduler_decides(tmp_path, scheduler, means):
    """
    Without cgroup v2 a scheduler that heeds priorities is used, and no other; the reason names
    it.
    """
    way = Machine(tmp_path, scheduler).way()

    assert way.means is means
    assert scheduler in way.why and "no cgroup v2" in way.why


def test_a_folder_on_no_disk_is_slowed_by_pauses(tmp_path):
    """
    Memory and network file systems have no queue here: only pauses help. The folder need not
    be there yet.
    """
    (tmp_path / "sys").mkdir()

    way = way_for(tmp_path / "not" / "yet", sys=tmp_path / "sys")

    assert way.means is Means.RATE and "no disk" in way.why


def test_a_weight_is_put_back(tmp_path):
    """
    The weight is 60 while the save runs and what it was before afterwards.
    """
    machine = Machine(tmp_path, "bfq").with_cgroup()

    undo = _begin(machine.way(), 60)
    during = machine.weight.read_text()
    undo()

    assert (during, machine.weight.read_text()) == ("default 60", "default 100")


def test_ranks_that_share_a_weight_put_it_back(tmp_path):
    """
    Whichever of two ranks of one cgroup ends its save first, the weight is in the end what it
    was before both.
    """
    machine = Machine(tmp_path, "bfq").with_cgroup()

    for first, second in ((0, 1), (1, 0)):
        undo = [_begin(machine.way(), 60), _begin(machine.way(), 60)]
        undo[first]()
        undo[second]()
        assert machine.weight.read_text() == "default 100"


def test_what_can_not_be_slowed_is_saved_all_the_same(tmp_path, monkeypatch):
    """
    A means that fails on one rank keeps it from no meeting: it slows itself by pauses, and the
    ledger says why.
    """
    lines = []
    peers = Alone(lambda kind, message, **facts: lines.append(message), lambda: 60)
    gone = Way(means=Means.WEIGHT, why="a test", weight_file=tmp_path / "gone")
    monkeypatch.setattr("slav1.checkpoint.throttle.way_for", lambda folder: gone)
    shelf = shelf_of(tmp_path, peers)

    shelf.save_in_background(tmp_path / "ck" / "x", file_writer(1), facts(1))
    shelf.drain(20.0)

    assert shelf.last_good is not None
    assert "by rate limit" in lines[0] and "No such file" in lines[0]


def test_a_priority_is_of_the_writing_thread_only():
    """
    The thread that writes goes last, no other does, and it is put back afterwards.
    """
    import psutil

    seen = []

    def work() -> None:
        me = psutil.Process(threading.get_native_id())
        undo = _begin(Way(means=Means.PRIORITY, why=""), 60)
        seen.append((me.ionice().ioclass, psutil.Process().ionice().ioclass))
        undo()
        seen.append((me.ionice().ioclass, psutil.Process().ionice().ioclass))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    idle, usual = psutil.IOPRIO_CLASS_IDLE, psutil.IOPRIO_CLASS_NONE
    assert seen == [(idle, usual), (usual, usual)]


def test_rests_leave_the_share_that_was_asked_for(tmp_path):
    """
    A writer held to 60 % of 100 MB/s takes at least as long as that says, in pieces, whatever
    the disk could do; and one without a known speed rests in proportion.
    """
    path = tmp_path / "file"
    path.write_bytes(b"x" * (PIECE_BYTES * 3 + 5))
    rests: list[float] = []
    with path.open("rb") as file:
        flush_slowly(file.fileno(), 60, 1e12, rests.append)
        known: list[float] = []
        flush_slowly(file.fileno(), 60, 1e5, known.append)

    assert len(rests) == len(known) == 4
    assert all(rest > 0 for rest in rests)
    # Nobody really rested, so each is asked to wait until its own moment.
    assert known[-1] == pytest.approx(path.stat().st_size / 0.6e5, rel=0.05)


def test_a_file_that_can_not_be_flushed_is_an_error():
    """
    What the kernel refuses to write out is raised and not passed over.
    """
    reader, writer = os.pipe()
    os.close(writer)
    os.close(reader)

    with pytest.raises(OSError, match="descriptor"):
        Throttle(lambda: 60).fsync(reader)


def test_saves_in_the_background_are_slowed_and_it_is_told_once(tmp_path, monkeypatch):
    """
    While the contract asks for it saves beside training are slowed, and the ledger says once by
    what means; saves that training waits for are not slowed.
    """
    wanted, lines, slowed, per_save = [100], [], [], []
    peers = Alone(lambda kind, message, **facts: lines.append((kind, message)), lambda: wanted[0])
    monkeypatch.setattr(
        "slav1.checkpoint.throttle.flush_slowly", lambda *given: slowed.append(given[1])
    )
    monkeypatch.setattr(
        "slav1.checkpoint.throttle.way_for", lambda folder: Way(means=Means.RATE, why="a test")
    )
    shelf = shelf_of(tmp_path, peers)

    for step, percent in enumerate([100, 60, 60, 100]):
        wanted[0] = percent
        shelf.save_in_background(tmp_path / "ck" / f"{step}", file_writer(step), facts(step))
        shelf.drain(20.0)
        per_save.append(set(slowed))
        slowed.clear()
    wanted[0] = 60
    shelf.save(tmp_path / "ck" / "own", file_writer(9), facts(9))

    told = [message for kind, message in lines if kind == "action"]
    assert told == ["Saves in the background are slowed to 60 % by rate limit: a test."]
    assert (per_save, slowed) == ([set(), {60}, {60}, set()], [])
