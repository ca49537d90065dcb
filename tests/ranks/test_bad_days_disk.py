"""A run directory that is full, forbidden, shared or spoilt."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slav1.contract import Contract
from slav1.verdict import verdicts

from ._bad_days import UNTIL_GO, finish, go, ledger, messages, said, start, until

pytestmark = [pytest.mark.ranks, pytest.mark.slow]


class SmallDisk:
    """A file system that is soon full."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mount(self, options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting needs root: {done.stderr.strip()}")

    def fill(self) -> Path:
        """Leaves not one byte; returns the file that takes the room."""
        ballast = self.path / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 512)
            except OSError:
                return ballast

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=False)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    small = SmallDisk(path)
    yield small
    small.unmount()


def test_disk_that_is_full_at_the_start_stops_nothing(launch, disk):
    """
    On a disk without room training goes on, one notice says so at the start, and one line
    at the end says what was lost.
    """
    disk.mount("size=64k")
    disk.fill()
    with start(launch, finish(), disk.path, num_ranks=2) as job:
        ended = job.wait()

    told = said(ended)
    assert ended.succeeded(), ended
    assert ["Training goes on" in line for line in told].count(True) == 1, told
    assert any("lines of the ledger" in line and "could not be written" in line for line in told)
    assert any("flight rings of ranks [0, 1] could not be written" in line for line in told)
    assert len(told) == 3, told


@pytest.mark.thorough
def test_disk_without_room_for_a_folder_stops_nothing(launch, disk):
    """
    If not even the folder of the run can be made, training goes on; once it can be, folder,
    contract and the whole ledger are there.
    """
    disk.mount("size=1m,nr_inodes=3")
    first, second = disk.path / "first", disk.path / "second"
    first.touch()
    second.touch()
    with start(launch, UNTIL_GO, disk.path) as job:
        job.wait_for("joined")
        assert not (disk.path / "run").exists()
        subprocess.run(["mount", "-o", "remount,nr_inodes=100", str(disk.path)], check=True)
        until((disk.path / "run" / "contract.yaml").exists, "the contract on the disk")
        ended = go(job)

    told = said(ended)
    assert ended.succeeded(), ended
    assert len(told) == 1 and "can't be made" in told[0], told
    assert messages(ledger(disk.path), "start")[0].startswith("Watching 1 rank(s)")
    assert messages(ledger(disk.path), "end") == ["Training ended."]
    assert Contract.load(disk.path / "run" / "contract.yaml").level_name == "L1"
    assert (disk.path / "run" / "ring-0.bin").exists()


def test_disk_that_fills_up_and_empties_again_loses_nothing(launch, disk):
    """
    When the disk fills up in the middle, lines wait in memory, one notice says so, and
    once there is room again the ledger holds all of them.
    """
    script = """
    import pathlib, time
    from _trainee import *
    session = join_run()
    say("joined")
    while not pathlib.Path("full").exists():
        time.sleep(0.01)
    for number in range(5):
        session.note(f"note {number}")
        time.sleep(0.1)
    say("noted")
    while not pathlib.Path("empty").exists():
        time.sleep(0.01)
    train(session, num_steps=20)
    session.leave("finished")
    """
    disk.mount("size=2m")
    with start(launch, script, disk.path, contract={"monitor": {"ring_slots": 16}}) as job:
        job.wait_for("joined")
        ballast = disk.fill()
        # The last page of the ledger has room of its own: use it up too.
        with (disk.path / "run" / "ledger.jsonl").open("r+b") as file:
            page = -os.fstat(file.fileno()).st_size % 4096
            file.seek(0, os.SEEK_END)
            file.write(b" " * (page - 1) + b"\n")
        (job.folder / "full").touch()
        job.wait_for("noted")
        on_disk = messages(ledger(disk.path), "notice")
        ballast.unlink()
        (job.folder / "empty").touch()
        ended = job.wait()

    told = said(ended)
    assert ended.succeeded(), ended
    assert on_disk == []
    assert ["can't be written" in line for line in told].count(True) == 1, told
    assert messages(ledger(disk.path), "notice") == [f"note {number}" for number in range(5)]
    assert messages(ledger(disk.path), "end") == ["Training ended."]


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("below a file", marks=pytest.mark.thorough),
        "read-only",
        pytest.param("ledger is a folder", marks=pytest.mark.thorough),
    ],
)
def test_unusable_run_directory_is_a_clear_error_on_all_ranks(launch, disk, way):
    """
    A run directory that can't be written to ends every rank, before its first step and
    within seconds, with a sentence that says which setting to change.
    """
    run_dir = disk.path / "runs"
    if way == "below a file":
        run_dir.write_text("this is no folder")
    elif way == "read-only":
        disk.mount("size=64k,ro")
    else:
        (run_dir / "run" / "ledger.jsonl").mkdir(parents=True)
    with start(launch, finish(), run_dir, num_ranks=3) as job:
        ended = job.wait()

    for rank in range(3):
        assert ended.exit_codes[rank] == 1
        assert f"run_dir {run_dir} can't be used" in ended.err[rank]
        assert "SLA_RUN_DIR" in ended.err[rank]
        assert ended.out[rank] == ""


@pytest.mark.thorough
def test_same_run_twice_at_once_is_refused(launch, tmp_path):
    """
    A second job of the same run id is refused on all its ranks as long as the first one
    runs, which is unharmed; it may have the run afterwards, as its next attempt.
    """
    with start(launch, UNTIL_GO, tmp_path) as first:
        first.wait_for("joined")
        with start(launch, finish(10), tmp_path, num_ranks=2) as second:
            refused = second.wait()
        ended = go(first)
    with start(launch, finish(10), tmp_path) as third:
        third.wait()

    assert ended.succeeded(), ended
    assert refused.exit_codes == {0: 1, 1: 1}
    assert all("another job that still runs" in refused.err[rank] for rank in (0, 1))
    assert [entry.attempt for entry in ledger(tmp_path) if entry.kind == "end"] == [0, 1]


def test_two_runs_share_a_directory(launch, tmp_path):
    """
    Two jobs with the same run directory, started at once, have a folder each.
    """
    names = {"SLA_RUN_ID": ""}
    one = start(launch, finish(30), tmp_path, env=names)
    two = start(launch, finish(30), tmp_path, env=names)
    with one, two:
        ended = [one.wait(), two.wait()]

    runs = [path.name for path in tmp_path.iterdir() if (path / "ledger.jsonl").exists()]
    assert all(each.succeeded() for each in ended)
    assert len(runs) == 2
    assert all(messages(ledger(tmp_path, run), "end") == ["Training ended."] for run in runs)


def test_cut_ledger_is_gone_on_with(launch, tmp_path):
    """
    A run that starts again on a ledger that was cut in the middle of a line counts as the
    next attempt, loses only that line, and can be judged.
    """
    with start(launch, finish(10), tmp_path) as job:
        job.wait()
    path = tmp_path / "run" / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 100])
    with start(launch, finish(10), tmp_path) as job:
        ended = job.wait()

    entries = ledger(tmp_path)
    assert ended.succeeded(), ended
    assert [entry.attempt for entry in entries if entry.kind == "end"] == [1]
    assert [entry.attempt for entry in entries if entry.kind == "start"] == [0, 1]
    assert (tmp_path / "run" / "attempt-0" / "ring-0.bin").exists()
    assert (tmp_path / "run" / "ring-0.bin").exists()
    contract = Contract.load(tmp_path / "run" / "contract.yaml")
    assert {clause.rule for clause in verdicts(entries, contract)} >= {"hang", "liveness"}


def test_nothing_of_the_surroundings_is_needed(launch, tmp_path):
    """
    A job runs and is watched without HOME, TMPDIR, PATH or a standard input, and with a
    standard error that is full because nobody reads it.
    """
    script = f"""
    import os, sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from _trainee import *
    for name in ("HOME", "TMPDIR", "USER", "LOGNAME", "PATH", "LANG"):
        os.environ.pop(name, None)
    os.close(0)
    read, write = os.pipe()
    os.dup2(write, 2)
    os.set_blocking(2, False)
    try:
        while os.write(2, b"x" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(2, True)
    session = join_run()
    session.note("somebody should read this")
    train(session, num_steps=20)
    session.leave("finished")
    """
    with start(launch, script, tmp_path) as job:
        ended = job.wait()

    assert ended.succeeded(), ended
    assert messages(ledger(tmp_path), "notice") == ["somebody should read this"]
    assert messages(ledger(tmp_path), "end") == ["Training ended."]
