"""Rollback in Lightning, in the running process: back to the checkpoint, and on from there."""

import itertools
from pathlib import Path
from typing import Any

import families
import lightning.pytorch as pl
import pytest
import toys
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor

from sla_lightning import SLACallback, _compat
from slav1.ledger import read_ledger
from slav1.recorder.ring import read_ring_file

from ._families import needs_deepspeed
from ._runs import entries, messages, told

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]

# Without the reflex there would be nothing to go back from.
BACK = {"mode": "enforce", "action": "rollback", "reflex": False}


@pytest.mark.parametrize(
    "family",
    [
        "plain_ddp",
        pytest.param("fsdp2", marks=pytest.mark.thorough),
        pytest.param("fsdp_sharded", marks=pytest.mark.thorough),
        "fsdp_full",
        pytest.param("deepspeed_3", marks=needs_deepspeed),
    ],
)
def test_two_ranks_go_back_and_see_the_same_again(ranks: Any, family: str) -> None:
    """
    After a NaN on one rank both ranks go back, at the end of the same step, to the newest
    checkpoint before it: model and optimizer are bit for bit what they were, and from there every
    batch, its noise and its loss are those of a training in which nothing happened. Each record
    has a gradient norm, or a notice says why not.
    """
    ended = ranks("rollback.py", family)

    assert ended.succeeded(), ended
    for out in ended.out.values():
        runs = told(out, "runs")
        assert runs["starts"] == [[8, True]]
        assert runs["stopped_at"] is None
        steps = [step for step, *_ in runs["seen"]]
        back = steps.index(8, 9)
        assert steps == [*range(back), *range(8, 16)]
        assert runs["seen"][back:] == runs["unbroken"][8:]
    ledger = [*read_ledger(Path(runs["folder"]) / "ledger.jsonl")]
    assert [line.step for line in ledger if line.kind == "restored"] == [7]
    carried_out = [line for line in ledger if line.kind == "action"][-1]
    assert carried_out.evidence["ranks"] == [0, 1]
    norms = [each.grad_norm for each in read_ring_file(Path(runs["folder"]) / "ring-0.bin")]
    are_unread = [line for line in ledger if "Gradients are not looked at" in (line.message or "")]
    # An engine tells its norm; parts of a gradient have none without asking all ranks.
    assert (None in norms, len(are_unread)) == ((True, 1) if "fsdp" in family else (False, 0))
    audits = [line.evidence for line in ledger if "audit" in line.evidence]
    assert [each["audit"] for each in audits] == ["start", "rollback"]
    assert not any(each["wrong"] for each in audits)


class Spoilt(families.Family):
    """Some batches are bad, whenever they are seen."""

    bad_batches: frozenset[int] = frozenset()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        is_bad = self.trainer.fit_loop.total_batch_idx in self.bad_batches
        # Slow enough for the monitor to see a bad step before the next ones are made.
        toys.time.sleep(0.03)
        return loss * float("nan") if is_bad else loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("score", float(self.global_step))


def train(
    run_dir: Path, bad_batches: set[int], *others: Any, **settings: Any
) -> tuple[SLACallback, Spoilt, pl.Trainer]:
    """Trains a rank for three epochs of eight batches; NaN takes it back."""
    pl.seed_everything(5, verbose=False)
    checkpoint = {"every_steps": 2} | settings.pop("checkpoint", {})
    validation = settings.pop("val_dataloaders", None)
    contract = toys.contract(non_finite=BACK, checkpoint=checkpoint)
    callback, model = SLACallback(contract, run_dir=str(run_dir)), Spoilt()
    model.bad_batches = frozenset(bad_batches)
    trainer = toys.trainer(callback, *others, max_epochs=3, **settings)
    trainer.fit(model, families.loader(1), validation)
    return callback, model, trainer


def numbers(model: Spoilt) -> list[tuple[int, int]]:
    """Step and batch within its epoch, as they were seen."""
    return [(step, batch) for step, batch, *_ in model.seen]


def test_batches_from_onset_to_alarm_are_skipped(tmp_path: Path) -> None:
    """
    The bad batches, the last ones of an epoch and the first of the next among them, are not
    seen again after the rollback, every other one is, and training ends as usual.
    """
    callback, model, trainer = train(tmp_path, {5, 15, 16})

    skipped = [
        range(line.evidence["first_skipped_batch"], line.evidence["last_skipped_batch"] + 1)
        for line in entries(tmp_path, "notice")
        if "first_skipped_batch" in line.evidence
    ]
    assert set(itertools.chain(*skipped)) >= {5, 15, 16}
    last_seen: dict[int, int] = {}
    for position, (step, _) in enumerate(numbers(model)):
        last_seen[step] = position
    kept = [numbers(model)[position][1] for _, position in sorted(last_seen.items())]
    assert kept == [n % 8 for n in range(24) if not any(n in numbers for numbers in skipped)]
    assert trainer.current_epoch == 3
    assert trainer.global_step == len(kept)
    assert callback.stopped_at is None
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_the_host_s_own_callbacks_go_back_too(tmp_path: Path) -> None:
    """
    ModelCheckpoint saves the steps that are made again, its checkpoints from after the target
    are set aside and none of a state in breach is left; EarlyStopping does not end the run.
    """
    saver = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=3, save_top_k=-1)
    early = EarlyStopping("score", mode="max", patience=2)
    data = families.loader(1)

    callback, _, trainer = train(
        tmp_path / "runs", {10}, saver, early, enable_checkpointing=True, val_dataloaders=data
    )

    assert callback.stopped_at is None and trainer.current_epoch == 3
    steps = sorted(int(path.stem.split("step=")[1]) for path in (tmp_path / "saved").glob("*.ckpt"))
    assert steps == [3, 6, 9, 12, 15, 18, 21]
    for path in (tmp_path / "saved").glob("*.ckpt"):
        state = toys.torch.load(path, weights_only=True)["state_dict"]
        assert all(tensor.isfinite().all() for tensor in state.values())


def test_without_a_way_back_training_stops_and_says_so(tmp_path: Path) -> None:
    """
    A run without a checkpoint, and one that has used up its rollbacks, stop instead: fit
    returns, and the ledger says why.
    """
    callback, _, _ = train(tmp_path / "none", {6}, checkpoint={"every_steps": None})
    assert callback.stopped_at is not None and 6 <= callback.stopped_at < 23
    assert any("no checkpoint" in line for line in messages(tmp_path / "none", "notice"))

    callback, _, _ = train(tmp_path / "many", {6, 12}, checkpoint={"max_rollbacks": 1})
    assert callback.stopped_at is not None and callback.stopped_at + 1 >= 12
    assert [line.step for line in entries(tmp_path / "many", "restored")] == [5]


def test_where_checkpoints_can_not_be_looked_for_training_stops_too(tmp_path: Path) -> None:
    """
    What keeps the ranks from choosing is no error of the training's: fit returns, and the
    ledger says what it was.
    """

    class Loses(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
            if trainer.global_step == 6:
                (tmp_path / "checkpoints.jsonl").unlink()
                (tmp_path / "checkpoints.jsonl").mkdir()

    callback, _, _ = train(tmp_path, {6}, Loses())

    assert callback.stopped_at is not None and callback.stopped_at < 23
    assert any(
        "no way back" in line and "director" in line for line in messages(tmp_path, "notice")
    )


def test_a_host_that_lacks_a_name_is_not_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where a private name of the host is missing, training runs and saves as ever, rollback is
    off, which the ledger says, and a contract that asks for one stops.
    """
    monkeypatch.setattr(_compat, "_FOR_ROLLBACKS", ("fit_loop._nothing_of_that_name",))

    callback, _, _ = train(tmp_path, {6})

    assert callback.stopped_at is not None
    assert any("_nothing_of_that_name" in line for line in messages(tmp_path, "notice"))
    assert entries(tmp_path, "restored") == []
    assert entries(tmp_path, "checkpoint_committed") != []
