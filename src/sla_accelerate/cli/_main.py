"""The command ``sla-accelerate``: its commands put together."""

import sys
from collections.abc import Sequence
from typing import NoReturn

from sla_accelerate.cli.check import check
from sla_accelerate.cli.config import config
from sla_accelerate.cli.launch import launch
from slav1.cli.program import carry_out, group, watched


def main() -> NoReturn:
    """Runs the command line of this process and exits with its status."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command.

    Args:
        arguments: The words after ``sla-accelerate``.

    Returns:
        The exit status: of ``launch`` Accelerate's own; of the others 0 if all is well, 3 if
        a contract can't be kept, 2 after a mistake on the command line.
    """
    if arguments[:1] == ["launch"]:
        # All its words are Accelerate's, and so is every error.
        launch(list(arguments[1:]))
        return 0
    app = group("Accelerate's configuration with a stability contract in it.")
    app.command("config")(config)
    app.command("launch", help="As `accelerate launch`, and the job finds the contract.")(_launch)
    app.command("check")(check)
    return watched(lambda: carry_out("sla-accelerate", app, arguments))


def _launch() -> None:
    """Stands in the list of commands; :func:`run` takes the words before it could."""
