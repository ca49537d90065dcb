"""Gradient accumulation with one NaN: rank 1, second micro-batch of step 6."""

import os

import torch
import toys

NUM_MICRO, BAD_STEP, NUM_BATCHES = 4, 6, 400


def main() -> None:
    inputs = torch.randn(2 * NUM_BATCHES, 4, generator=torch.Generator().manual_seed(0))
    targets = inputs.sum(1, keepdim=True)
    if os.environ["RANK"] == "1":
        inputs[2 * (NUM_MICRO * BAD_STEP + 1)] = float("nan")
    data = torch.utils.data.TensorDataset(inputs, targets)
    watch = toys.SLACallback(toys.contract())
    trainer = toys.trainer(
        watch,
        devices=2,
        strategy="ddp",
        accumulate_grad_batches=NUM_MICRO,
        max_epochs=1,
        use_distributed_sampler=False,
    )
    trainer.fit(toys.Toy(step_s=0.005), torch.utils.data.DataLoader(data, batch_size=2))
    toys.tell("fit", stopped_at=watch.stopped_at)


if __name__ == "__main__":
    main()
