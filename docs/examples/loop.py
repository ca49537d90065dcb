"""A plain training loop with Accelerate: digits, an evaluation after each epoch, checkpoints.

accelerate launch loop.py --epochs 3
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digits(num: int) -> TensorDataset:
    """Pictures of 8 by 8 points, and which of ten patterns each one shows."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 64, generator=generator)
    labels = torch.randint(10, (num,), generator=generator)
    return TensorDataset(patterns[labels] + torch.randn(num, 64, generator=generator), labels)


def main() -> None:
    """Trains and evaluates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=options.cpu)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.9)
    training = DataLoader(digits(512), batch_size=16, shuffle=True)
    evaluation = DataLoader(digits(128), batch_size=16)
    model, optimizer, schedule, training, evaluation = accelerator.prepare(
        model, optimizer, schedule, training, evaluation
    )

    for epoch in range(options.epochs):
        model.train()
        for pictures, labels in training:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(pictures), labels)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        hits = []
        for pictures, labels in evaluation:
            with torch.no_grad():
                guesses = model(pictures).argmax(dim=1)
            hits.append(accelerator.gather_for_metrics(guesses == labels))
        share = torch.cat(hits).float().mean().item()
        accelerator.print(f"epoch {epoch}: {share:.0%} right")
        accelerator.save_state(f"checkpoints/epoch-{epoch}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
