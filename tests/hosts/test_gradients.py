"""Gradients that go wrong, in both hosts: left out, recorded, held back, on all ranks alike."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradients as bad_gradients
import lightning.pytorch as pl
import pytest

from sla_accelerate import SLAAccelerator, _runs
from sla_lightning import SLACallback
from sla_lightning.checkpoint_guard import CheckpointGuard
from slav1.checkpoint.verify import verify_path
from slav1.decision import Action

from ._counting import start_afresh
from ._runs import entries

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


@pytest.mark.parametrize("host", ["lightning", "accelerate"])
def test_two_ranks_meet_three_bad_gradients_and_train_on(ranks: Any, host: str) -> None:
    """
    A NaN on one rank is left out on both before it reaches the weights, a gradient norm that
    leaps leads to a snapshot that nobody resumes from, and one that thins out to a lower
    learning rate for some steps: at the end all steps are made, and weights are finite and the
    same on both ranks, bit for bit.
    """
    ended = ranks("gradients.py", host)

    assert ended.succeeded(), ended
    one, other = [
        json.loads(Path(ranks.run_dir, f"told-{rank}.json").read_text()) for rank in (0, 1)
    ]
    assert one["weights"] == other["weights"]
    assert all(map(math.isfinite, one["weights"]))
    assert one["stopped_at"] is None
    assert one.get("num_seen", 150) == 150
    ledger = entries(ranks.run_dir)
    decisions = [(e.action, e.rank) for e in ledger if e.kind == "decision"]
    assert [action for action, _ in decisions] == ["skip_batches", "snapshot", "clip_and_decay"]
    _is_told_of_the_skip(ledger, decisions)
    _has_a_snapshot(ledger)
    _has_decayed(ledger, one["used"], other["used"])


def _is_told_of_the_skip(ledger: list[Any], decisions: list[Any]) -> None:
    """The rank whose batch was bad is named, its batch too, and the update was left out."""
    bad = next(e for e in ledger if e.kind == "breach" and e.rank == 1)
    assert (bad.rule, bad.step, bad.evidence["batch"]) == ("non_finite", 10, 10)
    assert "the weights are as before" in bad.message
    assert decisions[0] == ("skip_batches", 1)
    assert any("are left out wherever training comes" in (e.message or "") for e in ledger)
    assert not [e for e in ledger if e.kind == "breach" and e.rule == "update_skew"]


def _has_a_snapshot(ledger: list[Any]) -> None:
    """It verifies, says itself that nobody must go on from it, and says what it cost."""
    (notice,) = [e for e in ledger if "A snapshot of the state" in (e.message or "")]
    path = Path(notice.evidence["path"])
    assert path.parent.name == "snapshots"
    assert notice.evidence["blocked_s"] > 0
    report = verify_path(path)
    assert report.problems == ()
    assert report.manifest is not None
    assert not report.manifest.is_healthy


def _has_decayed(ledger: list[Any], *used: list[float]) -> None:
    """All ranks lowered the rate in the same updates, and all others saw the usual one."""
    (decision,) = [e for e in ledger if e.kind == "decision" and e.action == "clip_and_decay"]
    first = decision.step + 1
    lowered = range(first, first + 12)
    for rates in used:
        assert rates == pytest.approx(
            [1e-7 * (0.25 if step in lowered else 1.0) for step in range(150)]
        )


@pytest.mark.thorough
def test_a_rank_that_leaves_out_alone_takes_all_back(ranks: Any) -> None:
    """
    A gradient that turns NaN after it was reduced, on one rank only, is left out there and
    nowhere else: that rank is named, all go back, and the replicas are equal again at the end.
    """
    ended = ranks(
        "gradients.py", "lightning", env={"SLA_INJECT": "nan:rank=1,step=50,what=gradient"}
    )

    assert ended.succeeded(), ended
    one, other = [
        json.loads(Path(ranks.run_dir, f"told-{rank}.json").read_text()) for rank in (0, 1)
    ]
    assert one["weights"] == other["weights"]
    ledger = entries(ranks.run_dir)
    skewed = next(e for e in ledger if e.kind == "breach" and e.rule == "update_skew")
    assert (skewed.rank, skewed.step, skewed.action) == (1, 50, "rollback")
    assert [e.step for e in ledger if e.kind == "restored"] == [39]


DECAYED = {"gradients": {"decay": 0.25, "decay_steps": 10, "zero_share_every": 1}}


def lightning_rates(folder: Path, *, order_at: int | None, resume: Path | None) -> list[float]:
    """Rates that the updates of one fit of 20 steps saw; saves after eight steps."""

    class Module(bad_gradients.toys.Toy):
        def configure_optimizers(self) -> Any:
            self.sgd = bad_gradients.Sgd(self.parameters())
            return self.sgd

    class Orders(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            fit = ours._fit
            assert fit is not None
            if trainer.global_step == order_at:
                fit.mild(Action.CLIP_AND_DECAY)
            if trainer.global_step == 8:
                trainer.save_checkpoint(folder / "8.ckpt")

    toys = bad_gradients.toys
    ours = SLACallback(toys.contract(**DECAYED), run_dir=str(folder))
    module = Module(step_s=0.0)
    toys.trainer(ours, Orders(), max_epochs=1).fit(module, toys.batches(20), ckpt_path=resume)
    return module.sgd.used


def accelerate_rates(folder: Path, *, order_at: int | None, resume: Path | None) -> list[float]:
    """The same of one hand-written loop."""
    toys = bad_gradients.toys
    accelerator = SLAAccelerator(contract=toys.contract(**DECAYED), run_dir=str(folder), cpu=True)
    model = toys.nn.Linear(4, 1)
    sgd = bad_gradients.Sgd(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, sgd, toys.batches(20))
    if resume is not None:
        accelerator.load_state(resume)
    for inputs, targets in loader:
        loss = toys.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if accelerator.sla_last_step + 1 == order_at:
            watch = _runs.current()
            assert watch is not None
            accelerator._sla_checkpoints.mild(watch, Action.CLIP_AND_DECAY)
        if accelerator.sla_last_step + 1 == 8:
            accelerator.save_state(folder / "8.ckpt")
    accelerator.end_training()
    start_afresh()
    return sgd.used


@pytest.mark.parametrize("rates", [lightning_rates, accelerate_rates])
def test_an_order_survives_a_resume(rates: Any, tmp_path: Path) -> None:
    """
    Of ten decayed steps that begin after step 4, the three before a checkpoint are made by one
    start and the seven after it by the next, which then sees the usual rate again.
    """
    low, usual = 0.25e-7, 1e-7

    first = rates(tmp_path, order_at=5, resume=None)
    second = rates(tmp_path, order_at=None, resume=tmp_path / "8.ckpt")

    assert first == pytest.approx([usual] * 5 + [low] * 10 + [usual] * 5)
    assert second == pytest.approx([low] * 7 + [usual] * 5)


def test_a_snapshot_is_taken_while_the_next_decision_is_under_way() -> None:
    """
    What is saved for people to look at is not refused because the state is in breach, as any
    other save is then.
    """
    session: Any = SimpleNamespace(command=SimpleNamespace(is_deciding=True))
    shelf: Any = SimpleNamespace(is_last_good=lambda path: False)
    guard = CheckpointGuard(pl.Trainer(accelerator="cpu", logger=False), session, shelf, shelf)
    facts: Any = None

    assert "about to act on a breach" in guard._why_not("step-7", facts)
    guard.is_doubtful = True
    assert guard._why_not("step-7", facts) == ""
