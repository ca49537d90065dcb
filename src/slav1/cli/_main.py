"""The command ``sla``: its commands put together."""

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from slav1 import __version__
from slav1.cli.contract import check, show
from slav1.cli.program import carry_out, group, show_help, watched
from slav1.cli.replay import replay
from slav1.cli.verdict import verdict
from slav1.cli.verify import verify


def main() -> NoReturn:
    """Runs the command line of this process and exits with its status."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command.

    Args:
        arguments: The words after ``sla``.

    Returns:
        The exit status: 0 if all is well, 3 if a clause or file is not as it should be,
        2 after a mistake on the command line.
    """
    return watched(lambda: _run(list(arguments)))


def _run(arguments: list[str]) -> int:
    return carry_out("sla", _app(with_demo=_may_mean_demo(arguments)), arguments)


def _app(*, with_demo: bool) -> typer.Typer:
    app = group("The stability contract for distributed training.", _start)
    contracts = group("Print a contract, or check one.")
    contracts.command("show")(show)
    contracts.command("check")(check)
    app.add_typer(contracts, name="contract")
    app.command("verdict")(verdict)
    app.command("replay")(replay)
    app.command("verify")(verify)
    if with_demo:
        # Only here, since it brings in more than the others need to start.
        from slav1.cli.demo import demo

        app.command("demo")(demo)
    return app


def _start(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"slav1 {__version__}")
        raise typer.Exit(0)
    show_help(context)


def _may_mean_demo(arguments: list[str]) -> bool:
    word = next((word for word in arguments if not word.startswith("-")), None)
    return word not in ("contract", "verdict", "replay", "verify")
