"""Content: what was in memory is found again in what was written, tensor by tensor."""

from pathlib import Path
from typing import Any

import pytest
import torch

from slav1.checkpoint import Alone, SaveFailedError, Vote, judge_votes
from slav1.checkpoint.file_tensors import read_tensors
from slav1.checkpoint.fingerprints import (
    fingerprint,
    fingerprint_tensors,
    name_non_finite,
    name_tensors,
)
from slav1.testing import ThreadPeers, run_ranks

from ._shelves import facts, shelf_of


class OfTheUser:
    """A class that a checkpoint may hold and no reader may need to know."""

    def __init__(self) -> None:
        self.values = [1]


def state_at(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(64, 32, generator=generator)
    return {
        "model": {"w": weight, "tied": weight, "half": weight.bfloat16(), "none": torch.empty(0)},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step)), "m": weight * 2}}},
        "step": step,
        "hyper": OfTheUser(),
    }


def save(shelf: Any, root: Path, step: int, state: Any, written: Any = None, **more: Any) -> Any:
    tensors = name_tensors(state)
    written = state if written is None else written
    return shelf.save(
        root / "ck" / f"s{step}.ckpt",
        lambda path: torch.save(written, path),
        facts(step, tensors=tensors, **more),
    )


def test_fingerprint_is_of_the_values() -> None:
    """
    Equal tensors have equal fingerprints whatever their strides; another bit, type or shape
    has another one.
    """
    one = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    wide = torch.zeros(3, 8)
    wide[:, ::2] = one

    assert fingerprint(one) == fingerprint(wide[:, ::2]) == fingerprint(one.t().contiguous().t())
    others = [one.reshape(4, 3), one.double(), one.clone(), -one, torch.empty(0), one.t()]
    others[2][1, 1] += 1e-6
    assert len({fingerprint(other) for other in [one, *others]}) == 7


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("form", ["torch", "safetensors", "distributed"])
def test_every_tensor_is_found_in_its_file(form: str, tmp_path: Path) -> None:
    """
    Each format's reader gives back the names and fingerprints that were handed to it, and
    runs nothing that the file contains.
    """
    state = state_at(3)
    tensors = name_tensors(state)
    if form == "torch":
        files = [tmp_path / "a.ckpt"]
        torch.save(state, files[0])
    elif form == "safetensors":
        from safetensors.torch import save_file

        files = [tmp_path / "a.safetensors"]
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, files[0])
    else:
        import torch.distributed.checkpoint as dcp

        plain = {"model": state["model"], "optimizer": state["optimizer"], "step": 3}
        dcp.save(plain, checkpoint_id=str(tmp_path / "d"), no_dist=True)
        files = sorted((tmp_path / "d").glob("*.distcp"))

    found = dict(pair for file in files for pair in read_tensors(file) or ())

    assert fingerprint_tensors(found) == fingerprint_tensors(tensors)


def test_content_is_proved(tmp_path: Path) -> None:
    """
    At level content a writer that writes something else than it was handed, drops a tensor
    or mixes steps is caught before the commit, with the tensor's name.
    """
    shelf = shelf_of(tmp_path, Alone(), verify="content")
    assert save(shelf, tmp_path, 1, state_at(1)).manifest.content

    mixed = state_at(2)
    mixed["model"] = {**mixed["model"], "tied": state_at(1)["model"]["w"]}
    with pytest.raises(SaveFailedError, match=r"model\.tied has other contents"):
        save(shelf, tmp_path, 2, state_at(2), mixed)
    short = state_at(3)
    del short["optimizer"]["state"][0]["m"]
    with pytest.raises(SaveFailedError, match=r"optimizer\.state\.0\.m is in no file"):
        save(shelf, tmp_path, 3, state_at(3), short)
    assert not (tmp_path / "ck" / "s2.ckpt").exists()


def test_the_same_again_is_refused(tmp_path: Path) -> None:
    """
    A state that is bit for bit the last one although steps were taken is refused, also after
    a restart; saving the same step twice is not.
    """
    shelf = shelf_of(tmp_path, Alone(), verify="content")
    save(shelf, tmp_path, 1, state_at(1))
    save(shelf, tmp_path, 1, state_at(1))

    for later in (shelf, shelf_of(tmp_path, Alone(), verify="content", attempt=1)):
        with pytest.raises(SaveFailedError, match="bit for bit"):
            save(later, tmp_path, 2, state_at(1))


def test_ranks_that_know_different_checkpoints_refuse_alike(tmp_path: Path) -> None:
    """
    Whether a state is that of the newest checkpoint rank 0 says: a rank whose machine never saw
    that one refuses too, instead of waiting for the others in the write.
    """
    weight = torch.ones(3)

    def work(peers: ThreadPeers) -> Any:
        def save(shelf: Any, name: str, step: int) -> Any:
            def write(path: Path) -> None:
                if peers.rank == 0:
                    torch.save({"w": weight}, path)

            tensors = {"w": weight} if peers.rank == 0 else {}
            return shelf.save(tmp_path / name / "x", write, facts(step, tensors=tensors))

        save(shelf_of(tmp_path, peers, verify="content"), "ck", 1)
        home = tmp_path if peers.rank == 0 else tmp_path / "elsewhere"
        again = shelf_of(home, peers, verify="content", attempt=1)
        with pytest.raises(SaveFailedError) as failed:
            save(again, "new", 2)
        return failed.value.reason

    reasons = run_ranks(work, 2)

    assert reasons[0] == reasons[1]
    assert "bit for bit" in reasons[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_non_finite_is_seen(value: float, dtype: torch.dtype) -> None:
    """
    One number that is not finite is found in any floating-point type; the largest finite one
    is not taken for it.
    """
    tensor = torch.zeros(5, 7, dtype=dtype)
    tensor[0, 0] = torch.finfo(dtype).max
    assert name_non_finite({"a": tensor, "count": torch.tensor(3), "b": torch.empty(0)}) is None
    tensor[4, 6] = value
    assert name_non_finite({"fine": torch.ones(2), "w": tensor}) == "w"


def test_non_finite_state_is_never_good(tmp_path: Path) -> None:
    """
    PC-17: weights with a NaN on one rank make the checkpoint unhealthy on all, whatever the
    host says, and the last good one stays.
    """

    def work(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers)
        for step in (10, 20):
            weight = torch.ones(4)
            if step == 20 and peers.rank == 1:
                weight[2] = float("nan")

            def write(path: Path, step: int = step) -> None:
                if peers.rank == 0:
                    path.write_bytes(bytes([step]))

            given = facts(step, tensors={"w": weight})
            commit = shelf.save(tmp_path / "ck" / f"{step}.ckpt", write, given)
        assert shelf.last_good is not None
        return commit.is_healthy, shelf.last_good.step, peers.records

    results = run_ranks(work, 2)

    assert [result[:2] for result in results] == [(False, 10)] * 2
    message = results[0][2][-1][1]
    assert "w" in message and "rank 1" in message


def test_what_masks_with_infinities_is_healthy(tmp_path: Path) -> None:
    """
    A tensor that a host names as one that may be infinite does not make the state unhealthy;
    the same without its name does.
    """
    shelf = shelf_of(tmp_path, Alone())
    mask = {"mask": torch.full((2,), float("-inf"))}

    def save(step: int, **given: Any) -> bool:
        path = tmp_path / "ck" / f"{step}.ckpt"
        write = lambda staging: staging.write_bytes(b"x")  # noqa: E731
        return shelf.save(path, write, facts(step, tensors=mask, **given)).is_healthy

    assert save(1, may_be_infinite={"mask"})
    assert not save(2)


def test_diverged_replicas_are_outvoted(tmp_path: Path) -> None:
    """
    Replicas are voted on by their fingerprints: a minority is named and outvoted, no
    majority is no commit.
    """

    def work(peers: ThreadPeers) -> Any:
        shelf = shelf_of(tmp_path, peers)

        def write(path: Path) -> None:
            if peers.rank == 0:
                path.write_bytes(b"1")

        def replicas(others: tuple[int, ...]) -> dict[str, torch.Tensor]:
            return {"w": torch.full((3,), float(peers.rank in others))}

        shelf.save(tmp_path / "ck" / "a", write, facts(1, replicas=replicas((2,))))
        try:
            shelf.save(tmp_path / "ck" / "b", write, facts(2, replicas=replicas((1, 2))))
        except SaveFailedError as error:
            return error.has_quorum, error.ranks, peers.records
        return None

    results = run_ranks(work, 3)

    assert [result[:2] for result in results] == [(False, (1, 2))] * 3
    notices = [more for kind, _, more in results[0][2] if kind == "notice"]
    assert [(one["rule"], one["ranks"]) for one in notices] == [("replica_divergence", [2])]
    assert not judge_votes([Vote(rank=0, step=1, root="")], facts(1)).reason
