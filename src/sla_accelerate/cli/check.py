"""``sla-accelerate check``: the contract of a file of Accelerate's, with all it says."""

from pathlib import Path
from typing import Annotated

import typer

from sla_accelerate._config.file import HOME_PATH, read_document
from sla_accelerate._config.host import refusal_of
from slav1.cli.contract import AsJson, print_checked
from slav1.cli.program import CommandLineError
from slav1.contract import Contract, ContractError


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Accelerate's file, in YAML.")],
    as_json: AsJson = False,
) -> None:
    """Check the contract in a file of Accelerate's, and print it in full.

    Exit status: 0 if it can be kept, 3 if not or if there is none, 2 if there is no such file.
    """
    if not file.is_file():
        raise CommandLineError(f"{file} is no file; give the path of one that Accelerate reads.")
    print_checked(lambda: _contract_of(file), "sla-accelerate check", file, as_json=as_json)


def _contract_of(file: Path) -> Contract:
    document = read_document(file)
    if refusal := refusal_of(file):
        raise ContractError(f"{file}: Accelerate refuses it: {refusal}", file=str(file))
    if document is None:
        raise ContractError(
            f"{file} holds no contract: it has no block {HOME_PATH}. sla-accelerate config "
            f"--file {file} writes one.",
            file=str(file),
        )
    return document.contract or Contract.level("L1")
