"""Lightning's own ways of saving, under the commit protocol."""

import contextlib
import dataclasses
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import toys
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.plugins import AsyncCheckpointIO
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, StrategyRegistry

import sla_lightning.checkpoint_guard
from sla_lightning import SLACallback, SLACheckpointIO, SLAFSDPStrategy, strategies
from sla_lightning.checkpoint_guard import CheckpointGuard
from slav1.checkpoint import (
    Alone,
    CheckpointDamagedError,
    NoGoodCheckpointError,
    SaveFacts,
    SaveFailedError,
    Shelf,
    WorldSizeError,
    verify_path,
)
from slav1.contract import CheckpointSettings

from ._families import needs_deepspeed
from ._runs import entries, messages, told

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]

DATA = toys.batches(8)


def fit(
    folder: Path,
    *others: Any,
    ckpt_path: Any = None,
    checkpoint: dict[str, Any] | None = None,
    num_steps: int = 24,
    model: Any = None,
    **settings: Any,
) -> pl.Trainer:
    """Trains for three epochs of eight batches; the run directory is ``folder / "runs"``."""
    contract = toys.contract(checkpoint=checkpoint or {})
    callback = SLACallback(contract, run_dir=str(folder / "runs"))
    trainer = toys.trainer(
        callback, *others, max_steps=num_steps, enable_checkpointing=bool(others), **settings
    )
    trainer.fit(model or toys.Toy(step_s=0.0), DATA, ckpt_path=ckpt_path)
    return trainer


def saver(folder: Path, **settings: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder / "saved", **{"every_n_train_steps": 4, **settings})


def step_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["global_step"])


def newest(folder: Path) -> Path:
    """The committed checkpoint of the latest step."""
    paths = (path for path in (folder / "saved").glob("*.ckpt") if not path.is_symlink())
    return max(paths, key=step_of)


def is_proved(path: Path) -> bool:
    report = verify_path(path)
    return report.manifest is not None and not report.problems


def damage(path: Path) -> None:
    """Flips a bit in the middle, size unchanged."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_model_checkpoint_works_as_ever_and_each_is_proved(tmp_path: Path) -> None:
    """
    With top-k 1 and a link to the last one, what the host saves verifies, nothing unfinished
    is left beside it, the link leads to the newest; the host's rotation leaves the last good
    one and the one before it, and no more.
    """
    fit(tmp_path, saver(tmp_path, save_last="link"))

    saved = sorted(path.name for path in (tmp_path / "saved").glob("*.ckpt"))
    assert saved == ["epoch=2-step=20.ckpt", "epoch=2-step=24.ckpt", "last.ckpt"]
    assert (tmp_path / "saved" / "last.ckpt").resolve() == newest(tmp_path)
    assert not list((tmp_path / "saved").glob(".*"))
    assert all(is_proved(tmp_path / "saved" / name) for name in saved[:2])
    committed = [line.step for line in entries(tmp_path / "runs", "checkpoint_committed")]
    assert committed == [3, 7, 11, 15, 19, 23]


def test_weights_alone_are_no_state_to_go_on_from(tmp_path: Path) -> None:
    """
    A checkpoint of weights only is proved and can be named, but is never the last good one.
    """
    fit(tmp_path, saver(tmp_path, save_weights_only=True))

    path = newest(tmp_path)
    assert is_proved(path)
    assert "optimizer_states" not in torch.load(path, weights_only=True)
    with pytest.raises(NoGoodCheckpointError):
        fit(tmp_path, ckpt_path="last_good")


def test_last_good_passes_over_damage_and_says_so(tmp_path: Path) -> None:
    """
    PC-02: the newest, with one bit flipped, is refused before anything is loaded, named, and
    set aside; training goes on from the one before. Named by its path, it is an error.
    """
    fit(tmp_path / "a", saver(tmp_path / "a", save_top_k=-1))
    damaged = newest(tmp_path / "a")
    damage(damaged)
    with pytest.raises(CheckpointDamagedError, match="step=24"):
        fit(tmp_path / "b", ckpt_path=damaged)

    trainer = fit(tmp_path / "a", ckpt_path="last_good", num_steps=28)

    assert trainer.ckpt_path == tmp_path / "a" / "saved" / "epoch=2-step=20.ckpt"
    assert trainer.global_step == 28
    assert not damaged.exists()
    assert list(damaged.parent.glob(".rejected-*step=24.ckpt"))
    second = max((tmp_path / "a" / "runs").glob("*/ledger.jsonl"), key=lambda p: p.stat().st_mtime)
    text = second.read_text()
    assert "step=24.ckpt" in text and '"restored"' in text


def test_a_run_without_any_checkpoint_starts_afresh_and_says_so(tmp_path: Path) -> None:
    """
    ``last_good`` in a run that has saved nothing trains from scratch, with a notice.
    """
    trainer = fit(tmp_path, ckpt_path="last_good", num_steps=8)

    assert trainer.global_step == 8 and trainer.ckpt_path is None
    assert any("has no checkpoint" in line for line in messages(tmp_path / "runs", "notice"))


def test_failed_saves_are_borne_until_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    PC-03: a save that finds the disk full leaves what was there, training goes on, and the
    ledger says why; the third in a row ends training with that error.
    """
    calls = itertools.count()
    write = sla_lightning.checkpoint_guard.write_file

    def fails(checkpoint: Any, path: Path) -> None:
        if next(calls) in bad:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        write(checkpoint, path)

    monkeypatch.setattr(sla_lightning.checkpoint_guard, "write_file", fails)
    one_name = {"filename": "same", "enable_version_counter": False}
    bad = {1, 2}
    trainer = fit(tmp_path / "a", saver(tmp_path / "a", **one_name), num_steps=12)
    assert trainer.global_step == 12
    assert step_of(tmp_path / "a" / "saved" / "same.ckpt") == 4
    rejected = entries(tmp_path / "a" / "runs", "checkpoint_rejected")
    assert [line.evidence["num_failed_in_row"] for line in rejected] == [1, 2]
    assert "No space left" in rejected[0].message

    calls, bad = itertools.count(), {1, 2, 3}
    with pytest.raises(SaveFailedError, match="No space left"):
        fit(tmp_path / "b", saver(tmp_path / "b", **one_name))
    assert step_of(tmp_path / "b" / "saved" / "same.ckpt") == 4
    assert not list((tmp_path / "b" / "saved").glob(".sla-new*"))


@pytest.mark.parametrize("way", ["saved", "link"])
def test_a_state_with_nan_takes_no_good_one_s_place(way: str, tmp_path: Path) -> None:
    """
    PC-17: with a contract that lets NaN pass, checkpoints of such weights are never the last
    good one, and the one name that holds it is not overwritten, however the host writes the
    path to it.
    """
    (tmp_path / "saved").mkdir()
    (tmp_path / "link").symlink_to("saved")

    class Spoils(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
            if trainer.global_step == 10:
                module.linear.weight.data.fill_(float("nan"))

    contract = toys.contract(non_finite={"mode": "observe"})
    last = saver(tmp_path, filename="same", enable_version_counter=False)
    # The host follows links in a folder that it is given, but not in one that it finds.
    last.dirpath = str(tmp_path / way)
    trainer = toys.trainer(
        SLACallback(contract, run_dir=str(tmp_path / "runs")),
        *(Spoils(), last),
        max_steps=24,
        enable_checkpointing=True,
    )
    trainer.fit(toys.Toy(step_s=0.0), DATA)

    assert trainer.global_step == 24
    assert step_of(tmp_path / "saved" / "same.ckpt") == 8
    assert any("last good one's place" in line for line in messages(tmp_path / "runs", "notice"))


def test_saving_in_the_background_proves_too(tmp_path: Path) -> None:
    """
    With ``background`` each checkpoint holds one step's state, proved and committed, though
    training changes it meanwhile; the last one is waited for.
    """

    class Counting(toys.Toy):
        def on_train_batch_end(self, *_: Any) -> None:
            self.linear.weight.data.fill_(float(self.trainer.global_step))

    fit(
        tmp_path,
        saver(tmp_path, save_top_k=-1),
        model=Counting(),
        checkpoint={"background": True, "verify": "content"},
    )

    paths = list((tmp_path / "saved").glob("*.ckpt"))
    assert sorted(map(step_of, paths)) == [4, 8, 12, 16, 20, 24]
    for path in paths:
        state = torch.load(path, weights_only=True)
        # Callbacks come before the module: the weights are those of the step before.
        assert set(state["state_dict"]["linear.weight"].flatten().tolist()) != set()
        assert len(set(state["state_dict"]["linear.weight"].flatten().tolist())) <= 4
        assert is_proved(path)


def test_an_exception_s_last_checkpoint_is_proved(tmp_path: Path) -> None:
    """
    ``save_on_exception`` saves under the protocol, and the user's error comes through.
    """

    class Fails(toys.Toy):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if self.global_step == 6:
                raise RuntimeError("the user's own error")
            return super().training_step(batch, batch_idx)

    last = saver(tmp_path, save_on_exception=True)
    with pytest.raises(RuntimeError, match="the user's own error"):
        fit(tmp_path, last, model=Fails(step_s=0.0))

    assert step_of(newest(tmp_path)) == 6
    assert is_proved(newest(tmp_path))
    assert [line.step for line in entries(tmp_path / "runs", "checkpoint_committed")] == [3, 5]


def test_remote_paths_go_the_host_s_way_with_a_notice(tmp_path: Path) -> None:
    """
    Behind a URL the host saves, rotates and resumes as without us; the ledger says, once,
    that nothing of it is proved.
    """
    keeper = ModelCheckpoint("memory://remote", every_n_train_steps=4)
    fit(tmp_path / "a", keeper)
    assert keeper.best_model_path.startswith("memory://")

    trainer = fit(tmp_path / "b", ckpt_path=keeper.best_model_path, num_steps=26)

    assert trainer.global_step == 26
    told = [line for line in messages(tmp_path / "a" / "runs", "notice") if "memory://" in line]
    assert len(told) == 1
    assert entries(tmp_path / "a" / "runs", "checkpoint_committed") == []


def test_asynchronous_writing_of_the_host_is_refused(tmp_path: Path) -> None:
    """
    ``AsyncCheckpointIO`` says that a save is done before it is written: an error that names
    the contract's own way. ``SLACheckpointIO`` is taken.
    """
    with pytest.raises(TypeError, match="background: true"):
        fit(tmp_path / "a", plugins=[AsyncCheckpointIO()])

    fit(tmp_path / "b", saver(tmp_path / "b"), plugins=[SLACheckpointIO()])
    assert is_proved(newest(tmp_path / "b"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_strategies_are_known_by_name_and_on_the_command_line(tmp_path: Path) -> None:
    """
    Every strategy is registered once, however often that is asked for; a LightningCLI file
    names one by its class, with the host's own arguments; none of it imports DeepSpeed.
    """
    was_loaded = "deepspeed" in sys.modules
    strategies.register()
    names = [name for name in StrategyRegistry.available_strategies() if name.startswith("sla_")]
    stages = [f"sla_deepspeed_stage_{stage}" for stage in (1, 2, 3)]
    assert sorted(names) == sorted(["sla_ddp", "sla_fsdp", "sla_fsdp2", *stages])
    sharded = {"class_path": "sla_lightning.SLAFSDPStrategy"}
    sharded["init_args"] = {"state_dict_type": "sharded", "sharding_strategy": "NO_SHARD"}
    config = {"strategy": sharded, "accelerator": "cpu", "devices": 1, "logger": False}
    config["callbacks"] = [{"class_path": "sla_lightning.SLACallback"}]
    (tmp_path / "config.yaml").write_text(json.dumps({"trainer": config}))

    parsed = LightningCLI(toys.Toy, args=["--config", str(tmp_path / "config.yaml")], run=False)

    assert type(parsed.trainer.strategy) is SLAFSDPStrategy
    assert parsed.trainer.strategy._state_dict_type == "sharded"
    assert ("deepspeed" in sys.modules) == was_loaded


@pytest.mark.parametrize(
    "family", ["sla_ddp", "fsdp2", pytest.param("deepspeed_2", marks=needs_deepspeed)]
)
def test_two_ranks_resume_exactly(ranks: Any, family: str) -> None:
    """
    Without a callback of their own, by their strategy alone, two ranks save proved checkpoints
    and go on from ``last_good`` half-way through an epoch: every batch, its noise and its loss
    are those of a training without interruption.
    """
    ended = ranks("resume.py", family)

    assert ended.succeeded(), ended
    for out in ended.out.values():
        runs = told(out, "runs")
        assert [step for step, *_ in runs["resumed"]] == list(range(12, 20))
        assert runs["resumed"] == runs["unbroken"][12:]
        assert runs["went_on_from"].endswith("step=12.ckpt")


def test_a_save_on_one_rank_only_is_named(ranks: Any) -> None:
    """
    PC-08: rank 0 alone saves a sharded model; within the hang limit the report says who came
    to the checkpoint, who did not, and the user's line, and the job ends with an error.
    """
    ended = ranks("lone_save.py")

    assert all(code != 0 for code in ended.exit_codes.values()), ended
    (breach,) = entries(ranks.run_dir, "breach", rule="hang")
    assert "heckpoint entered by ranks [0], missing [1]" in breach.message
    assert "lone_save.py:18" in breach.message


@pytest.mark.parametrize(
    ("strategy", "saved_by", "is_refused"),
    [(DeepSpeedStrategy, 4, True), (DeepSpeedStrategy, 2, False), (DDPStrategy, 4, False)],
)
def test_another_number_of_ranks_is_no_damage(tmp_path, strategy, saved_by, is_refused):
    """
    A whole checkpoint whose parts belong to ranks is refused by another number of them, in
    words that speak of the ranks and not of damage; one that is the same for all is taken.
    """
    path = tmp_path / "a.ckpt"
    commit = Shelf(
        settings=CheckpointSettings(), peers=Alone(), run_folder=tmp_path / "runs" / "a", attempt=0
    ).save(path, lambda file: file.write_bytes(b"x"), SaveFacts(step=1, host="t", kind="sharded"))
    manifest = dataclasses.replace(commit.manifest, world_size=saved_by)
    # Only what is asked of them: starting DeepSpeed takes half a minute.
    bare = object.__new__(strategy)
    bare.load_full_weights = False
    guard = CheckpointGuard(SimpleNamespace(world_size=2, strategy=bare), None, None, None)
    expected = (
        pytest.raises(WorldSizeError, match="is whole, but it was written by 4 ranks")
        if is_refused
        else contextlib.nullcontext()
    )
    with expected as refused:
        guard.check_world_size(path, manifest)

    assert (refused is not None) == is_refused
