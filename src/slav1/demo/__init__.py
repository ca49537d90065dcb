"""What the training jobs of ``sla demo`` have in common: text, model, contract."""

from slav1.demo.job import (
    BATCH_SIZE,
    LEARNING_RATE,
    LENGTH,
    SAVE_EVERY,
    SEED,
    JobOptions,
    contract_for,
    options_of,
)
from slav1.demo.model import CharacterModel, cross_entropy
from slav1.demo.text import ALPHABET, Windows, source_text

__all__ = [
    "ALPHABET",
    "BATCH_SIZE",
    "LEARNING_RATE",
    "LENGTH",
    "SAVE_EVERY",
    "SEED",
    "CharacterModel",
    "JobOptions",
    "Windows",
    "contract_for",
    "cross_entropy",
    "options_of",
    "source_text",
]
