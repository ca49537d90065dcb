"""Fine-tuning of a small language model that is sharded over all ranks by FSDP.

accelerate launch --num_processes 2 fsdp_fine_tune.py --steps 200
"""

import argparse
from collections.abc import Iterator

import torch
from sla_accelerate import SLAAccelerator as Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin, set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader

TEXT = "the quick brown fox jumps over the lazy dog and runs away from it . "
LENGTH = 32


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        return self.layer(tokens, mask, is_causal=True)


class LanguageModel(nn.Module):
    """Predicts the next letter."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 128)

    def forward(self, letters: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(letters)))


def pieces(num: int) -> Iterator[Tensor]:
    """Pieces of the text, each one letter longer than the model looks at."""
    letters = torch.tensor([ord(letter) for letter in TEXT * 3])
    for number in range(num):
        start = 7 * number % len(TEXT)
        yield letters[start : start + LENGTH + 1]


def main() -> None:
    """Loads, trains, saves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        state_dict_type="SHARDED_STATE_DICT",
    )
    accelerator = Accelerator(fsdp_plugin=plugin)
    set_seed(1)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = 4 * options.steps * accelerator.num_processes
    loader = DataLoader(list(pieces(batches)), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for step, letters in enumerate(loader):
        logits = model(letters[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), letters[:, 1:].flatten())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.3f}")
    accelerator.save_state("checkpoints/fine-tuned")
    accelerator.end_training()


if __name__ == "__main__":
    main()
