"""The command line ``sla-accelerate``: Accelerate's own, and the contract's beside it."""

from sla_accelerate.cli._main import main, run

__all__ = ["main", "run"]
