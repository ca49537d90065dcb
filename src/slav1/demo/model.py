"""A character-level transformer small enough for a busy laptop."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Causal self-attention and a small network, each added to its input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix_heads = nn.Linear(width, width)
        self.before_network = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, length, width)`` to the same shape, float."""
        x = x + self.mix_heads(self._attend(self.before_attention(x)))
        after: Tensor = x + self.network(self.before_network(x))
        return after

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        by_head = self.query_key_value(x).view(batch, length, 3, self.num_heads, -1)
        query, key, value = by_head.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class CharacterModel(nn.Module):
    """Predicts the next character from those before it."""

    def __init__(
        self,
        *,
        num_characters: int,
        length: int,
        width: int = 48,
        num_heads: int = 2,
        num_blocks: int = 2,
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_blocks)))
        self.last_norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, num_characters)

    def forward(self, text: Tensor) -> Tensor:
        """Maps ``(batch, length)``, int64, to scores ``(batch, length, characters)``."""
        x = self.characters(text) + self.positions[: text.shape[1]]
        scores: Tensor = self.scores(self.last_norm(self.blocks(x)))
        return scores


def cross_entropy(scores: Tensor, following: Tensor) -> Tensor:
    """Mean cross entropy, in nats a character.

    Args:
        scores: As the model gives them; shape ``(batch, length, characters)``.
        following: The characters that follow; shape ``(batch, length)``, int64.
    """
    return functional.cross_entropy(scores.flatten(0, 1), following.flatten())
