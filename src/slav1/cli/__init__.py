"""The command line ``sla``: one file a command."""

from slav1.cli._main import main, run

__all__ = ["main", "run"]
