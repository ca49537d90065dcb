"""Compilation makes single steps slow, later one rank is slow in every step.

The compiler is PyTorch's own, with a back end that takes its time.
"""

import os
import time
from typing import Any

import torch
import toys

RANK = int(os.environ["RANK"])
FIRST_S, AGAIN_S, VALIDATION_S = 3.0, 2.5, 3.0
AGAIN_AT, SLOW_FROM, NUM_STEPS = 60, 180, 280


class Compiled(toys.Toy):
    """Compiles in its first step; again, on rank 1 only, when the type of a number changes."""

    def __init__(self) -> None:
        super().__init__(step_s=0.03)
        self.num_compiled = 0
        self.calculate = torch.compile(self._calculate, backend=self._compile, dynamic=False)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        slow_s = self.step_s if RANK == 1 and batch_idx >= SLOW_FROM else 0.0
        time.sleep(self.step_s + slow_s)
        factor = 1 if RANK == 1 and batch_idx >= AGAIN_AT else 1.0
        return self.calculate(*batch, factor)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step < AGAIN_AT:
            time.sleep(VALIDATION_S)

    def _calculate(self, inputs: Any, targets: Any, factor: float) -> torch.Tensor:
        return factor * torch.nn.functional.mse_loss(self.linear(inputs), targets)

    def _compile(self, graph: Any, _: Any) -> Any:
        toys.tell("compiles", rank=RANK, step=self.trainer.global_step)
        time.sleep(AGAIN_S if self.num_compiled else FIRST_S)
        self.num_compiled += 1
        return graph.forward


def main() -> None:
    straggler = {"baseline_rounds": 100}
    hang = {"min_limit_s": 0.8, "warmup_steps": 1}
    contract = toys.contract(limit_s=1.0, hang=hang, straggler=straggler)
    trainer = toys.trainer(
        toys.SLACallback(contract),
        devices=2,
        strategy="ddp",
        max_steps=NUM_STEPS,
        val_check_interval=40,
        limit_val_batches=1,
    )
    trainer.fit(Compiled(), toys.batches(NUM_STEPS, num_ranks=2), toys.batches(2))
    toys.tell("fit", global_step=trainer.global_step)


if __name__ == "__main__":
    main()
