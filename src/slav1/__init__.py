"""The stability contract for distributed training, independent of any framework."""

__version__ = "0.1.0"
