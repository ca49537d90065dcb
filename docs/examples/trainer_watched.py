"""A language model trained by a Trainer: random words by heart, an evaluation, checkpoints.

torchrun --nproc-per-node 2 trainer.py --steps 200
"""

import argparse

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
from sla_accelerate import SLATrainer as Trainer

NUM_WORDS, LENGTH = 64, 8


class Words(Dataset[dict[str, Tensor]]):
    """Sentences of random words."""

    def __init__(self, num: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(NUM_WORDS, (num, LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.words[index], "labels": self.words[index]}


def main() -> None:
    """Trains and evaluates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()

    torch.manual_seed(1)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": LENGTH}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=NUM_WORDS, **shape, loss_type="ForCausalLMLoss"))
    arguments = TrainingArguments(
        output_dir="checkpoints",
        max_steps=options.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=options.steps,
        save_steps=options.steps // 2,
        save_total_limit=1,
        report_to="none",
        use_cpu=options.cpu,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Words(256),
        eval_dataset=Words(32),
    )
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    trainer.accelerator.print(f"loss {loss:.6f}")


if __name__ == "__main__":
    main()
