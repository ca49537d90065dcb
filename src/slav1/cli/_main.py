"""The command ``sla``: its commands put together, and what every one of them ends with."""

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from slav1 import __version__
from slav1.cli._errors import CommandLineError, one_line
from slav1.cli.contract import check, show
from slav1.cli.replay import replay
from slav1.cli.verdict import verdict
from slav1.cli.verify import verify

USAGE = 2
"""Exit status after a mistake on the command line."""

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT, as shells have it."""

READER_GONE = 141
"""Exit status when what reads our output has gone: 128 and the number of SIGPIPE."""

# Newer versions of typer bring their own copy of click; the errors are named alike.
_UsageError: Any = typer.BadParameter.__bases__[0]


def main() -> NoReturn:
    """Runs the command line of this process and exits with its status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A message in letters that the terminal lacks is still a message.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command.

    Args:
        arguments: The words after ``sla``.

    Returns:
        The exit status: 0 if all is well, 3 if a clause or file is not as it should be,
        2 after a mistake on the command line.
    """
    try:
        status = _run(list(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it ends, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    return status


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(_app(with_demo=_may_mean_demo(arguments)))
    try:
        with command.make_context("sla", arguments) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        return INTERRUPTED
    except _UsageError as error:
        return _fail(_usage_text(error))
    except CommandLineError as error:
        return _fail(str(error))
    return 0


def _app(*, with_demo: bool) -> typer.Typer:
    app = _group("The stability contract for distributed training.", _start)
    contracts = _group("Print a contract, or check one.")
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


def _group(text: str, start: Callable[..., None] | None = None) -> typer.Typer:
    group = typer.Typer(
        help=text,
        add_completion=False,
        rich_markup_mode=None,
        invoke_without_command=True,
        no_args_is_help=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    group.callback()(start or _show_help)
    return group


def _start(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"slav1 {__version__}")
        raise typer.Exit(0)
    _show_help(context)


def _show_help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(0)


def _may_mean_demo(arguments: list[str]) -> bool:
    word = next((word for word in arguments if not word.startswith("-")), None)
    return word not in ("contract", "verdict", "replay", "verify")


def _usage_text(error: Any) -> str:
    text = str(error.format_message())
    text = text if text.endswith((".", "?")) else f"{text}."
    context = error.ctx
    if context is None:
        return text
    commands = getattr(context.command, "commands", None)
    if commands:
        return f"{text} Commands of {context.command_path}: {', '.join(sorted(commands))}."
    return f"{text} {context.get_usage()}"


def _fail(text: str) -> int:
    print(f"sla: {one_line(text)}", file=sys.stderr)
    return USAGE
