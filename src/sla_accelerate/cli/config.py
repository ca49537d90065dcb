"""``sla-accelerate config``: one file for Accelerate and the contract."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sla_accelerate._config import host
from sla_accelerate._config.file import BLOCK, HOME, HOME_PATH, Block, read_block, read_document
from sla_accelerate._config.text import with_settings, with_settings_in_json
from slav1.cli.program import CommandLineError
from slav1.contract import ContractError

LEVELS = ("L1", "L2", "L3")
"""Levels, the mildest first."""

MODES = ("usual", "observe", "enforce")
"""What rules may do; ``usual`` leaves it to each rule."""

_USUAL_RUN_DIR = "sla_runs"


def config(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "--config_file",
            "--config-file",
            help="The file; Accelerate's default file without it.",
        ),
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Ask nothing: what is not said stays usual.")
    ] = False,
    level: Annotated[str | None, typer.Option(help=f"One of {', '.join(LEVELS)}.")] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="What all rules do: observe, enforce, or usual for each its own."),
    ] = None,
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", help="Folder in which each run gets its own.")
    ] = None,
) -> None:
    """Ask what Accelerate asks, then what the contract needs, and write both into one file.

    A file that is there keeps all it says; only the contract is put into it. Exit status: 0,
    2 for a mistake on the command line or a file that can't be used, 130 after Ctrl-C, which
    changes nothing.
    """
    path = file or host.default_file()
    said = {"level": level, "mode": mode, "run_dir": run_dir}
    for name, allowed in (("level", LEVELS), ("mode", MODES)):
        if said[name] is not None and said[name] not in allowed:
            raise CommandLineError(f"--{name} {said[name]} must be one of {', '.join(allowed)}.")
    if not default and not sys.stdin.isatty():
        raise CommandLineError("the questions need a terminal; --default asks none.")
    is_new = not path.exists()
    text = _new_text(path, default=default) if is_new else _text_in(path)
    block = _block_of(path, text)
    settings = _settings(said, block, ask=None if default else _ask)
    _write(path, text, settings, is_new=is_new)


def _new_text(path: Path, *, default: bool) -> str:
    made = host.usual() if default else host.asked_for()
    return host.text_of(made, as_json=path.suffix == ".json")


def _text_in(path: Path) -> str:
    try:
        # Line ends stay as they are.
        with path.open(encoding="utf-8", newline="") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandLineError(f"{path} can't be read: {reason}.") from error
    if refusal := host.refusal_of(path):
        raise CommandLineError(f"{path} is no file of Accelerate's: {refusal}")
    if not host.has_place(path):
        raise CommandLineError(
            f"{path} is for Amazon SageMaker, and such a file has no place for a contract; name "
            "a contract file by SLA_CONTRACT."
        )
    return text


def _block_of(path: Path, text: str) -> Block | None:
    try:
        block = read_block(text)
    except ContractError as error:
        raise CommandLineError(f"{path}: {error}") from error
    if block is not None and block.section != HOME:
        raise CommandLineError(
            f"{path}: the contract stands in {block.path} already; move it to {HOME_PATH}, or "
            "change it there by hand."
        )
    return block


def _settings(
    said: dict[str, str | None], block: Block | None, ask: Callable[..., str] | None
) -> dict[str, str]:
    """What is to stand in the block, of what was said, answered, and what stands there."""
    there = block.value if block is not None and isinstance(block.value, dict) else {}
    usual = {
        "level": there.get("level", LEVELS[0]),
        "mode": there.get("mode", MODES[0]),
        "run_dir": there.get("run_dir", _USUAL_RUN_DIR),
    }
    found: dict[str, str] = {}
    for name in ("level", "mode", "run_dir"):
        answer = said[name]
        if answer is None:
            answer = usual[name] if ask is None else ask(name, usual[name])
        if name == "mode" and answer == MODES[0] and name in there:
            raise CommandLineError(
                f"the file says mode: {there[name]} for all rules; remove that line to let each "
                "rule have its own."
            )
        if answer != there.get(name) and (name == "level" or answer != usual[name]):
            found[name] = answer
    return found


def _ask(name: str, usual: str) -> str:
    texts = {
        "level": "Level of the stability contract (L1 one machine, L2 several, L3 pre-training)",
        "mode": "What rules do (usual: facts act and statistics report; observe; enforce)",
        "run_dir": "Folder for the runs' ledgers",
    }
    allowed = {"level": LEVELS, "mode": MODES}.get(name)
    while True:
        answer = str(typer.prompt(texts[name], default=usual)).strip()
        if allowed is None or answer in allowed:
            return answer
        typer.echo(f"{answer} must be one of {', '.join(allowed)}.")


def _write(path: Path, text: str, settings: dict[str, str], *, is_new: bool) -> None:
    by_path: dict[Any, Any] = {(HOME, BLOCK, name): value for name, value in settings.items()}
    try:
        if path.suffix == ".json":
            changed, is_anew = with_settings_in_json(text, by_path), False
        else:
            changed, is_anew = with_settings(text, by_path)
        if is_new or changed != text:
            _replace(path, changed)
        else:
            read_document(path)
    except ContractError as error:
        raise CommandLineError(f"nothing was written: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise CommandLineError(f"{path} can't be written: {reason}.") from error
    except ValueError as error:
        raise CommandLineError(f"{path}: {error}") from error
    lost = " Comments in it are lost." if is_anew and "#" in text else ""
    typer.echo(f"The contract stands in {path} ({HOME_PATH}).{lost}")
    typer.echo(f"Start with: accelerate launch --config_file {shlex.quote(str(path))} SCRIPT")


def _replace(path: Path, text: str) -> None:
    """Puts a text in place of a file at once, if Accelerate and we can read it."""
    # What a link leads to is replaced, not the link.
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".sla-accelerate-") as folder:
        beside = Path(folder, f"new{target.suffix}")
        with beside.open("w", encoding="utf-8", newline="") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        try:
            read_document(beside)
        except ContractError as error:
            raise ContractError(str(error).removeprefix(f"{beside}: ")) from error
        if refusal := host.refusal_of(beside):
            raise ContractError(f"Accelerate would refuse it: {refusal}")
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
