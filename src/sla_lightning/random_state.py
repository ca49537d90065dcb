"""The random numbers of a rank: all generators that a training draws from, as plain values."""

from slav1.seeds import put_back, take

__all__ = ["put_back", "take"]
