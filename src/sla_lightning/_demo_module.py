"""The demo's model as Lightning takes it."""

import lightning as L
import torch
from torch import Tensor

from slav1.demo import ALPHABET, LEARNING_RATE, LENGTH, CharacterModel, cross_entropy


class CharacterModule(L.LightningModule):
    """Predicts the next character from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = CharacterModel(num_characters=len(ALPHABET), length=LENGTH)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Mean cross entropy of a batch, in nats a character."""
        text, following = batch
        return cross_entropy(self.model(text), following)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW over everything."""
        return torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE, fused=True)
