"""Where a host's settings come from: the argument, the environment, the default."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from slav1.contract import Contract

_LEVELS = ("L1", "L2", "L3")
_log = logging.getLogger("slav1")


class Resolved(NamedTuple):
    """Settings in force."""

    contract: Contract
    run_dir: Path


def resolve(
    contract: Contract | str | Path | None,
    run_dir: str | Path | None,
    environment: Mapping[str, str],
) -> Resolved:
    """Finds the contract and the run directory.

    Args:
        contract: A contract, the name of a level, or a YAML file; None to look further.
        run_dir: Folder of all runs; None to look further.
        environment: ``SLA_CONTRACT`` and ``SLA_RUN_DIR`` are looked at when the argument
            is None, and are then named in the log.

    Returns:
        Both settings; level L1 and ``sla_runs`` if nothing is said.

    Raises:
        ContractError: If the file can't be used.
        ValueError: If the name is neither a level nor a file.
    """
    name = "contract"
    if contract is None and (given := environment.get("SLA_CONTRACT")):
        _log.info("The contract comes from SLA_CONTRACT: %s", given)
        contract, name = given, "SLA_CONTRACT"
    if run_dir is None and (given := environment.get("SLA_RUN_DIR")):
        _log.info("The run directory comes from SLA_RUN_DIR: %s", given)
        run_dir = given
    return Resolved(
        _as_contract("L1" if contract is None else contract, name), Path(run_dir or "sla_runs")
    )


def _as_contract(contract: Contract | str | Path, name: str) -> Contract:
    if isinstance(contract, Contract):
        return contract
    if str(contract) in _LEVELS:
        return Contract.level(str(contract))
    if not Path(contract).exists():
        raise ValueError(
            f"{name} must be a level ({', '.join(_LEVELS)}), a YAML file or a Contract; "
            f"got {str(contract)!r}, and no such file exists."
        )
    return Contract.load(Path(contract))
