"""What every command line of this package has in common: how it starts and how it ends."""

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from slav1.cli._errors import CommandLineError, one_line

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "READER_GONE",
    "USAGE",
    "CommandLineError",
    "carry_out",
    "group",
    "watched",
]

FAILED = 1
"""Exit status when there is no room for what is to be written."""

USAGE = 2
"""Exit status after a mistake on the command line."""

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT, as shells have it."""

READER_GONE = 141
"""Exit status when what reads our output has gone: 128 and the number of SIGPIPE."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

# Newer versions of typer bring their own copy of click; the errors are named alike.
_UsageError: Any = typer.BadParameter.__bases__[0]


def watched(work: Callable[[], int]) -> int:
    """Does the work of a command line to its end, whoever interrupts it.

    Args:
        work: Does it, and returns an exit status.

    Returns:
        The exit status.
    """
    _open_what_is_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A message in letters that the terminal lacks is still a message.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = work()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _write_nothing_more()
        return READER_GONE
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _write_nothing_more()
        where = error.filename or "standard output"
        print(one_line(f"sla: {where} can't be written to: {error.strerror}."), file=sys.stderr)
        return FAILED
    return status


def _open_what_is_closed() -> None:
    """A stream that was closed before us is None, and its number would go to the next file."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open as long as we are
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123


def _write_nothing_more() -> None:
    # Python flushes stdout once more when it ends, and would complain then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def carry_out(name: str, app: typer.Typer, arguments: Sequence[str]) -> int:
    """Runs one command.

    Args:
        name: The program's name.
        app: Its commands.
        arguments: The words after the name.

    Returns:
        The exit status: that of the command, or 2 after one line about a mistake on the
        command line.
    """
    command = typer.main.get_command(app)
    try:
        with command.make_context(name, list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except typer.Abort:
        return INTERRUPTED
    except _UsageError as error:
        return _fail(name, _usage_text(error))
    except CommandLineError as error:
        return _fail(name, str(error))
    return 0


def group(text: str, start: Callable[..., None] | None = None) -> typer.Typer:
    """Makes a group of commands.

    Args:
        text: What its help begins with.
        start: What is done before a command, or without one; shows the help if None.
    """
    made = typer.Typer(
        help=text,
        add_completion=False,
        rich_markup_mode=None,
        invoke_without_command=True,
        no_args_is_help=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(start or show_help)
    return made


def show_help(context: typer.Context) -> None:
    """Prints the help of a group that was called without a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(0)


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


def _fail(name: str, text: str) -> int:
    print(f"{name}: {one_line(text)}", file=sys.stderr)
    return USAGE
