"""Saves in the background: from a copy, one at a time, and nothing that goes wrong is lost."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from slav1.checkpoint import Alone, CheckpointError, SaveFailedError
from slav1.checkpoint.fingerprints import name_tensors
from slav1.checkpoint.snapshot import SnapshotBuffers, snapshot
from slav1.testing import ThreadPeers, run_ranks

from ._shelves import facts, file_writer, save_folders, shelf_of


def test_snapshot_shares_nothing() -> None:
    """
    A copy has equal values and structure and shares no memory with the state; what was one
    tensor twice is one tensor twice; a copy stays as it is until the second one after it.
    """
    weight = torch.ones(4, 3)
    state = {"w": weight, "tied": [weight, (weight.t(), 1)], "more": {"set": {1, 2}, "n": 3}}
    buffers = SnapshotBuffers()
    buffers.prepare(state)

    first = snapshot(state, buffers)
    weight.fill_(2)
    second = snapshot(state, buffers)

    assert first["w"].eq(1).all() and second["tied"][1][0].eq(2).all()
    assert first["tied"][0] is first["w"] and first["more"] == {"set": {1, 2}, "n": 3}
    assert first["more"]["set"] is not state["more"]["set"]
    places = [{one.data_ptr() for one in name_tensors(s).values()} for s in (state, first, second)]
    assert not places[0] & places[1] and not places[0] & places[2] and not places[1] & places[2]
    third = snapshot(state, buffers)
    assert third["w"].data_ptr() == first["w"].data_ptr(), "memory is used again"


def test_names_that_read_alike_are_no_one_tensor() -> None:
    """
    Tensors whose places differ only in where a dot stands, in a number and its digits, or in
    how the same memory is read, are copied apart.
    """
    number = torch.tensor([1 + 2j])
    ones, twos = torch.ones(3), torch.full((3,), 2.0)
    state = {"a.b": ones, "a": {"b": twos}, 0: ones + 2, "0": twos + 2}
    lazy = {"number": number, "mirrored": number.conj()}

    copy, read = snapshot(state), snapshot(lazy)

    assert [copy["a.b"][0], copy["a"]["b"][0], copy[0][0], copy["0"][0]] == [1, 2, 3, 4]
    assert (read["number"].item(), read["mirrored"].item()) == (1 + 2j, 1 - 2j)


def test_a_save_that_training_waits_for_comes_after_the_one_beside_it(tmp_path: Path) -> None:
    """
    While a save runs in the background another one waits, so that each has a number of its own
    and the later one is the newest.
    """
    shelf = shelf_of(tmp_path, Alone())
    gate = threading.Event()

    def write(path: Path) -> None:
        gate.wait(10)
        file_writer(1)(path)

    shelf.save_in_background(tmp_path / "ck" / "beside", write, facts(1))
    opens = threading.Timer(0.1, gate.set)
    opens.start()
    commit = shelf.save(tmp_path / "ck" / "own", file_writer(2), facts(2))
    shelf.drain(20)
    opens.join()

    assert commit.manifest.sequence == 2
    newest = shelf.choose()
    assert newest is not None and newest.step == 2


def test_every_tensor_carries_the_same_step(tmp_path: Path) -> None:
    """
    PC-04 (ii): while training changes every weight as fast as it can, each file holds one
    step only, the one that is recorded for it.
    """
    weights = {f"w{index}": torch.zeros(2000) for index in range(20)}
    buffers = SnapshotBuffers()
    shelf = shelf_of(tmp_path, Alone(), verify="content")
    path = tmp_path / "ck" / "last.ckpt"
    for step in range(1, 13):
        for weight in weights.values():
            weight.fill_(step)
        if step % 3 == 0:
            copy = snapshot(weights, buffers)
            shelf.save_in_background(
                path, lambda p, copy=copy: torch.save(copy, p), facts(step, tensors=copy)
            )
        shelf.poll()
    shelf.drain(20)

    manifest = shelf.check(path)
    loaded = torch.load(path)
    assert manifest is not None and manifest.step == 12
    assert {value for one in loaded.values() for value in one.unique().tolist()} == {12.0}


def test_live_tensors_are_caught(tmp_path: Path) -> None:
    """
    A writer that works on live tensors instead of a copy is caught at level content.
    """
    weight = torch.zeros(100)
    shelf = shelf_of(tmp_path, Alone(), verify="content")

    def write(path: Path) -> None:
        weight.fill_(1)
        torch.save({"w": weight}, path)

    shelf.save_in_background(tmp_path / "ck" / "a", write, facts(1, tensors={"w": weight.clone()}))
    with pytest.raises(SaveFailedError, match="w has other contents"):
        shelf.drain(20)


def test_failure_comes_out_at_the_next_boundary(tmp_path: Path) -> None:
    """
    PC-04 (iii): an error in the background is raised by the next poll, once, on all ranks;
    the checkpoint is never good and the next save works.
    """

    def work(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers)
        save_folders(shelf, tmp_path, [10], peers.rank)

        def write(path: Path) -> None:
            path.mkdir(exist_ok=True)
            if peers.rank == 1:
                raise OSError(28, "No space left on device")

        shelf.save_in_background(tmp_path / "ck" / "step-20", write, facts(20, "sharded"))
        with pytest.raises(SaveFailedError, match="No space left") as caught:
            shelf.drain(20)
        shelf.poll()
        assert shelf.last_good is not None and shelf.num_failed_in_row == 1
        good = shelf.last_good.step
        save_folders(shelf, tmp_path, [30], peers.rank)
        return caught.value.ranks, good, shelf.last_good.step

    assert run_ranks(work, 2) == [((1,), 10, 30)] * 2


def test_nothing_moves_before_the_commit(tmp_path: Path) -> None:
    """
    While a background save is still writing, training goes on, the last good one is the old
    one, nothing was pruned, and a bounded wait says that it did not end.
    """
    may_end = threading.Event()
    own = tmp_path / "run-1" / "checkpoints"
    shelf = shelf_of(tmp_path, Alone(), keep=1)
    for step in (1, 2):
        shelf.save(own / f"{step}.ckpt", file_writer(step), facts(step))

    def write(path: Path) -> None:
        assert may_end.wait(20)
        file_writer(3)(path)

    shelf.save_in_background(own / "3.ckpt", write, facts(3))
    assert shelf.is_saving
    shelf.poll()
    assert shelf.last_good is not None and shelf.last_good.step == 2
    with pytest.raises(CheckpointError, match="did not end within"):
        shelf.drain(0.01)
    assert (own / "1.ckpt").exists() and not (own / "3.ckpt").exists()

    may_end.set()
    shelf.drain(20)
    assert not shelf.is_saving and shelf.last_good.step == 3
    assert not (own / "1.ckpt").exists() and (own / "2.ckpt").exists()


def test_killed_while_it_writes(tmp_path: Path) -> None:
    """
    PC-04 (i): killed while a background save is under way, a run goes on from the checkpoint
    before it and says that one in flight was lost.
    """
    started = tmp_path / "started"

    def write(path: Path) -> None:
        path.write_bytes(b"half")
        started.touch()
        time.sleep(30)

    child = os.fork()
    if child == 0:
        shelf = shelf_of(tmp_path, Alone())
        save_folders(shelf, tmp_path, [10])
        shelf.save_in_background(tmp_path / "ck" / "a.ckpt", write, facts(20))
        time.sleep(30)
        os._exit(1)
    deadline = time.monotonic() + 20
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    records: list[Any] = []
    peers = Alone(lambda kind, message, **more: records.append((kind, message, more["step"])))
    choice = shelf_of(tmp_path, peers, attempt=1).choose()

    assert choice is not None and choice.step == 10
    assert [(kind, step) for kind, _, step in records] == [("notice", 20)]
    assert "in flight" in records[0][1] and "lost" in records[0][1]
    assert [path.name for path in (tmp_path / "ck").iterdir()] == ["step-10"]
