"""Where a host's settings come from: argument, environment, the host's own file, default."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slav1.contract import Contract

_LEVELS = ("L1", "L2", "L3")


class Document(NamedTuple):
    """Settings that stand in a file of the host's own."""

    place: str
    """Which file and which part of it, and how it was found, for people."""

    contract: Contract | None = None
    """The contract that stands there; None if none does."""

    run_dir: str | None = None
    """The run directory that stands there; None if none does."""

    note: str = ""
    """What is to be said about the place itself, in a sentence; empty if nothing."""


class Resolved(NamedTuple):
    """Settings in force."""

    contract: Contract
    run_dir: Path
    origin: str = ""
    """Where both come from, in sentences, as far as they are not the script's arguments."""

    def differing(self, other: "Resolved") -> list[str]:
        """What is not the same in both: ``contract``, ``run_dir``."""
        both = zip(self._fields[:2], self[:2], other[:2], strict=True)
        return [name for name, mine, others in both if mine != others]


def resolve(
    contract: Contract | str | Path | None,
    run_dir: str | Path | None,
    environment: Mapping[str, str],
    find_document: Callable[[], Document | None] = lambda: None,
) -> Resolved:
    """Finds the contract and the run directory.

    Args:
        contract: A contract, the name of a level, or a YAML file; None to look further.
        run_dir: Folder of all runs; None to look further.
        environment: ``SLA_CONTRACT`` and ``SLA_RUN_DIR`` are looked at when the argument
            is None.
        find_document: Looks for settings in a file of the host's; called only if one of
            both is still open.

    Returns:
        Both settings; level L1 and ``sla_runs`` if nothing is said.

    Raises:
        ContractError: If a file can't be used.
        ValueError: If the name is neither a level nor a file.
        TypeError: If the contract is something else.
    """
    origin = ""
    name = "contract"
    if contract is None and (given := environment.get("SLA_CONTRACT")):
        origin += f" The contract comes from SLA_CONTRACT: {given}."
        contract, name = given, "SLA_CONTRACT"
    if run_dir is None and (given := environment.get("SLA_RUN_DIR")):
        origin += f" The run directory comes from SLA_RUN_DIR: {given}."
        run_dir = given
    if contract is None or run_dir is None:
        found = find_document() or Document("")
        origin += f" {found.note}" if found.note else ""
        if contract is None and found.contract is not None:
            contract = found.contract
            level = contract.level_name
            origin += f" The contract comes from {found.place}; its level is {level}."
        if run_dir is None and found.run_dir is not None:
            run_dir = found.run_dir
            origin += f" The run directory comes from {found.place}: {run_dir}."
    if contract is None:
        contract = "L1"
        origin += " Nothing names a contract, so it is that of level L1."
    return Resolved(_as_contract(contract, name), Path(run_dir or "sla_runs"), origin.strip())


def as_plain(settings: Resolved) -> dict[str, Any]:
    """Writes settings as plain values, for a comparison."""
    return {"run_dir": str(settings.run_dir), **settings.contract.to_dict()}


def _as_contract(contract: Contract | str | Path, name: str) -> Contract:
    if isinstance(contract, Contract):
        return contract
    if str(contract) in _LEVELS:
        return Contract.level(str(contract))
    needed = f"{name} must be a level ({', '.join(_LEVELS)}), a YAML file or a Contract"
    if not isinstance(contract, str | os.PathLike):
        raise TypeError(f"{needed}; got {contract!r}, a {type(contract).__name__}.")
    if contract == "":
        # As a path it would be this very folder.
        raise ValueError(f"{needed}; got an empty text.")
    if not Path(contract).exists():
        raise ValueError(f"{needed}; got {str(contract)!r}, and no such file exists.")
    return Contract.load(Path(contract))
