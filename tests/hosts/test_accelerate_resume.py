"""Resume and rollback of a hand-written loop on two ranks, in every way to shard a model."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from slav1.ledger import read_ledger

from ._runs import run_folders

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

WATCHED = {"monitor": {"tick_s": 0.02}}
FULL = {"name": "full", "save_at": [7, 13]}
RESUMED = {"name": "resumed", "load": "last_good", "seed": 5}
ROLLED = {
    "name": "rolled",
    "save_at": [2, 7],
    "nan_batches": [13],
    "skip": False,
    # Without the reflex there would be nothing to go back from.
    "clauses": WATCHED | {"non_finite": {"reflex": False}},
}


class Story:
    """What the ranks of one job wrote down."""

    def __init__(self, job: Any, names: list[str]) -> None:
        self.folder = job.folder
        self.logs = {name: self._read(name) for name in names}

    def _read(self, name: str) -> list[dict[str, Any]]:
        files = sorted(self.folder.glob(f"log-{name}-*.json"))
        return [json.loads(file.read_text()) for file in files]

    def batches(self, name: str) -> list[list[Any]]:
        """What each rank trained with: step, epoch, items, noise, loss, learning rate."""
        return [log["batches"] for log in self.logs[name]]

    def steps(self, name: str) -> list[int]:
        """The steps of rank 0, in the order in which they ended."""
        return [batch[0] for batch in self.batches(name)[0]]

    def of(self, name: str, key: str) -> list[Any]:
        """What each rank wrote under ``key``."""
        return [log[key] for log in self.logs[name]]


@pytest.fixture
def story(ranks: Any) -> Any:
    """Runs several trainings in one job."""

    def run(*trainings: dict[str, Any], mode: str = "ddp") -> Story:
        given = [{"mode": mode, **training} for training in trainings]
        env = {"TORCH_EXTENSIONS_DIR": str(ranks.folder / "extensions"), "DS_ACCELERATOR": "cpu"}
        ended = ranks("accelerate_checkpoints.py", json.dumps(given), env=env, timeout_s=240)
        assert ended.succeeded(), ended
        return Story(ranks.jobs[-1], [training["name"] for training in trainings])

    return run


def tail(story: Story, name: str, num: int) -> list[list[Any]]:
    """The last batches of each rank."""
    return [batches[-num:] for batches in story.batches(name)]


def without_epoch(ranks: list[list[list[Any]]]) -> list[list[list[Any]]]:
    """The batches without the number of their epoch."""
    return [[[batch[0], *batch[2:]] for batch in batches] for batches in ranks]


def messages(folder: Path, *kinds: str) -> list[str]:
    """Ledger lines of all runs of the job."""
    paths = [one / "ledger.jsonl" for one in run_folders(folder / "runs")]
    return [e.message for path in paths for e in read_ledger(path) if e.kind in kinds]


def check_resumed(story: Story) -> None:
    """A resumed training is the rest of the unbroken one, bit for bit."""
    assert story.of("resumed", "loaded") == ["saved-13"] * 2
    assert story.batches("resumed") == tail(story, "full", 6)
    assert story.of("resumed", "end") == story.of("full", "end")


def check_rolled(story: Story) -> None:
    """A training that was rolled back comes to where it was and then to the same end."""
    assert story.steps("rolled")[-12:] == list(range(8, 20))
    # The epoch is the loop's own variable: it stands still until the loop comes round.
    assert without_epoch(tail(story, "rolled", 12)) == without_epoch(tail(story, "full", 12))
    assert [s["back"] for s in story.of("rolled", "states")] == [
        s["7"] for s in story.of("rolled", "states")
    ]
    assert story.of("rolled", "end") == story.of("full", "end")


@pytest.mark.parametrize(
    "mode",
    [
        "fsdp2",
        pytest.param(
            "zero2",
            marks=[
                pytest.mark.thorough,
                pytest.mark.skipif(not find_spec("deepspeed"), reason="needs deepspeed"),
            ],
        ),
        pytest.param(
            "zero3",
            marks=pytest.mark.skipif(not find_spec("deepspeed"), reason="needs deepspeed"),
        ),
    ],
)
def test_sharded_models_resume_and_roll_back_bit_for_bit(story, mode):
    """
    With FSDP2 and DeepSpeed, too, a resumed training takes the batches, the noise, the
    losses and the end of the unbroken one, and one that is rolled back over the end of an
    epoch is at the checkpoint again, bit for bit, and comes to the same end.
    """
    told = story(FULL, RESUMED, ROLLED, mode=mode)

    check_resumed(told)
    check_rolled(told)


def test_resume_and_rollback_change_nothing(story):
    """
    With DDP the same holds, without a seedable sampler too, and from the checkpoint before
    if a bit of the newest has flipped: both ranks say so and go on from the same.
    """
    unseeded = FULL | {"name": "unseeded", "seedable": False, "seed": 3, "save_at": [7, 15]}
    again = RESUMED | {"name": "again", "seedable": False}
    flipped = again | {"name": "flipped", "damage": "saved-15/model.safetensors"}
    told = story(FULL, RESUMED, ROLLED, unseeded, again, flipped)

    check_resumed(told)
    check_rolled(told)
    assert told.of("again", "loaded") == ["saved-15"] * 2
    assert told.batches("again") == tail(told, "unseeded", 4)
    assert told.of("flipped", "loaded") == ["saved-7"] * 2
    assert tail(told, "flipped", 12) == tail(told, "unseeded", 12)
    (rejected,) = messages(told.folder, "checkpoint_rejected")
    assert "saved-15" in rejected and "model.safetensors" in rejected and "digest" in rejected
    assert [m for m in messages(told.folder, "restored") if "back to step 7" in m]


def test_neither_numbers_nor_epochs_begin_again(story):
    """
    A job that is started again takes the newest of the host's numbered folders, goes on in
    the epoch it was in, which the host forgets, and saves under the next number, which the host
    would begin at 0.
    """
    named = {"name": "named", "naming": True, "save_at": [7, 13]}
    again = {"name": "again", "naming": True, "save_at": [17], "load": "last_good", "seed": 5}
    told = story(named, again)

    assert told.of("again", "loaded") == ["checkpoint_1"] * 2
    assert told.batches("again") == tail(told, "named", 6)
    assert {batch[1] for batch in told.batches("again")[0]} == {1}
    folder = told.folder / "project" / "checkpoints"
    assert sorted(one.name for one in folder.iterdir()) == [f"checkpoint_{n}" for n in range(3)]


def test_bad_batches_are_left_out_after_a_rollback(story):
    """
    A batch that makes the loss NaN is met once: after the rollback training goes through
    all others, in order, on both ranks, with losses that are finite.
    """
    told = story(FULL, ROLLED | {"name": "skipped", "skip": True, "nan_batches": [], "poison": 11})

    for full, skipped in zip(told.batches("full"), told.batches("skipped"), strict=True):
        items = [batch[2] for batch in full]
        poisoned = items[11]
        after = [batch for batch in skipped if batch[0] > 7][-11:]
        assert [batch[2] for batch in after] == [one for one in items[8:] if one != poisoned]
        assert all(batch[5] == batch[5] for batch in after)
