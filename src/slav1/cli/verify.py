"""``sla verify``: whether a checkpoint is whole."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from slav1.cli._errors import CommandLineError, one_line
from slav1.cli._output import print_note

DAMAGED = 3
"""Exit status if anything is wrong with a checkpoint."""


def verify(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A checkpoint, or the folder that holds some.")
    ],
    finite: Annotated[
        bool, typer.Option("--finite", help="Look for NaN and infinity in the tensors too.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a checkpoint.")
    ] = False,
) -> None:
    """Say whether a checkpoint is whole, ours or not.

    Nothing in it is loaded or run. Exit status: 0 if it is whole as far as that can be told,
    3 if it is damaged, 2 if it is no checkpoint.
    """
    # Not at the top: hashing and the rest are of no use to the other commands.
    from slav1.checkpoint.formats import Examination, NotACheckpointError, checkpoints_in, examine

    def look(checkpoint: Path) -> Examination:
        found = examine(checkpoint, finite=finite)
        print(json.dumps(_plain(found)) if as_json else _text(found))
        return found

    try:
        found = [look(path)]
    except NotACheckpointError as error:
        inner = checkpoints_in(path)
        if not inner:
            raise CommandLineError(str(error)) from error
        found = [look(checkpoint) for checkpoint in inner]
    num_damaged = sum(not each.is_whole for each in found)
    if not as_json:
        print_note(f"{path}: {len(found) - num_damaged} of {len(found)} checkpoints whole.")
    raise typer.Exit(DAMAGED if num_damaged else 0)


def _plain(found: Any) -> dict[str, Any]:
    return {**asdict(found), "path": str(found.path), "is_whole": found.is_whole}


def _text(found: Any) -> str:
    outcome = "whole" if found.is_whole else "damaged"
    passed = ", ".join(f"{name} of {number}" for name, number in found.checks.items())
    size = f"{found.num_files} files, {found.num_bytes} bytes"
    head = f"{found.path}: {outcome}; {found.form}, {size}; checked: {passed or 'nothing'}"
    damages = [f"damaged: {each.file}: {each.message}" for each in found.damages]
    unchecked = [f"not checked: {each.file}: {each.message}" for each in found.unchecked]
    return "\n  ".join(one_line(line) for line in (head, *damages, *unchecked))
