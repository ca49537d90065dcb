"""A training that is taken back once, beside the same one that is not."""

import os
import sys
from typing import Any

import families
import lightning.pytorch as pl
import torch
import toys
from torch import Tensor

NUM_RANKS = int(os.environ["WORLD_SIZE"])
RANK = int(os.environ["RANK"])
BAD_STEP = 10


class SpoiltOnce(families.Family):
    """The last rank gets a NaN at one step, the first time that it comes there.

    DeepSpeed leaves a bad update out by itself, and there is nothing to go back from: with it
    the rank asks to go back.
    """

    def __init__(self, bad_step: int | None, watch: Any, *, asks: bool) -> None:
        super().__init__()
        self.bad_step = bad_step
        self._watch = watch
        self._asks = asks

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.global_step == self.bad_step and self.trainer.global_rank == NUM_RANKS - 1:
            self.bad_step = None
            if self._asks:
                session = self._watch._fit.session
                session.ask_to_roll_back("The test wants it.", step=self.global_step)
                return loss
            return loss * float("nan")
        return loss


class Watches(pl.Callback):
    """Remembers the state that each checkpoint holds, and compares at each start."""

    def __init__(self) -> None:
        self.states: dict[int, list[Tensor]] = {}
        self.starts: list[tuple[int, bool]] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.states[trainer.global_step] = families.local_state(trainer)

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        kept = self.states.get(trainer.global_step)
        if kept is not None:
            now = families.local_state(trainer)
            is_same = len(now) == len(kept) and all(map(torch.equal, now, kept))
            self.starts.append((trainer.global_step, is_same))


def train(name: str, *, bad_step: int | None) -> tuple[Any, Watches, Any]:
    pl.seed_everything(3, verbose=False)
    rule = {"mode": "enforce", "action": "rollback", "reflex": False}
    clauses = {"non_finite": rule, "checkpoint": {"every_steps": 4}, "gradients": {"norm_every": 1}}
    watch = toys.SLACallback(toys.contract(**clauses))
    watches, model = Watches(), SpoiltOnce(bad_step, watch, asks=name.startswith("deepspeed"))
    trainer = toys.trainer(
        watch,
        watches,
        devices=NUM_RANKS,
        strategy=families.strategy(name) if NUM_RANKS > 1 else "auto",
        max_steps=16,
        use_distributed_sampler=True,
    )
    # What is not known can't be skipped.
    forget = pl.callbacks.LambdaCallback(
        on_train_start=lambda *_: setattr(watch._fit._rollback.batches, "of_steps", lambda *_: None)
    )
    trainer.callbacks.append(forget)
    trainer.fit(model, families.loader(NUM_RANKS))
    return model.seen, watches, watch


def main() -> None:
    name = sys.argv[1]
    unbroken, _, _ = train(name, bad_step=None)
    seen, watches, watch = train(name, bad_step=BAD_STEP)
    toys.tell(
        "runs",
        unbroken=unbroken,
        seen=seen,
        starts=watches.starts,
        stopped_at=watch.stopped_at,
        folder=str(watch.run_folder),
    )


if __name__ == "__main__":
    main()
