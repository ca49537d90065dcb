"""``sla contract show`` and ``sla contract check``: a contract with all it says."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from slav1.cli._errors import CommandLineError
from slav1.cli._output import print_note
from slav1.contract import Contract, ContractError, Mode, Rung, ladder
from slav1.policy import PolicyError, available
from slav1.policy.process import PolicyProcess

REFUSED = 3
"""Exit status for a file that is no contract."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def show(
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="L1, L2 or L3.")],
    as_json: AsJson = False,
) -> None:
    """Print the contract of a level."""
    try:
        contract = Contract.level(level)
    except ContractError as error:
        raise CommandLineError(str(error)) from error
    _print(contract, as_json=as_json)


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A contract in YAML.")],
    as_json: AsJson = False,
) -> None:
    """Check a contract file and print it in full.

    Exit status: 0 if it can be kept, 3 if not, 2 if there is no such file.
    """
    if not file.is_file():
        raise CommandLineError(f"{file} is no file; give the path of a contract in YAML.")
    print_checked(lambda: Contract.load(file), "sla contract check", file, as_json=as_json)


def print_checked(read: Callable[[], Contract], command: str, file: Path, *, as_json: bool) -> None:
    """Prints the contract of a file, or why it can't be kept.

    Args:
        read: Reads it.
        command: Who says so.
        file: The file.
        as_json: Whether to print JSON.

    Raises:
        typer.Exit: With :data:`REFUSED`, if it can't be kept.
    """
    try:
        contract = read()
        more = policy_notes(contract)
    except (ContractError, PolicyError) as error:
        key = error.key if isinstance(error, ContractError) else "policy"
        text = str(error) if isinstance(error, ContractError) else f"{file}: {error}"
        if as_json:
            print(json.dumps({"contract": None, "error": text, "key": key}))
        print_note(f"{command}: {text}")
        raise typer.Exit(REFUSED) from error
    _print(contract, as_json=as_json, more=more)


def notes(contract: Contract) -> list[str]:
    """Tells what a contract says that this version does not do, or can't keep.

    Args:
        contract: The contract.

    Returns:
        One sentence each.
    """
    found = []
    for rule in contract.rules.values():
        instead = available(rule.action)
        if rule.mode is not Mode.OFF and instead is not rule.action:
            asked, done = rule.action.name.lower(), instead.name.lower()
            found.append(f"rules.{rule.name}.action: this version does {done} for {asked}.")
    found += [
        f"{rung.key}: a hang inside a training step may last longer than the "
        f"{contract.recovery_within_s:g} s that {contract.level_name} promises to recover in."
        for rung in ladder(contract)
        if rung.key == "rules.hang.limit_s" and rung.is_within_recovery is False
    ]
    return found


def policy_notes(contract: Contract) -> list[str]:
    """Tells how a contract's policy was found: loaded, and asked about an empty input.

    Args:
        contract: The contract.

    Returns:
        One sentence each; none without a policy.

    Raises:
        PolicyError: If the policy can't be used.
    """
    if contract.policy is None:
        return []
    policy = PolicyProcess.open(contract.policy)
    policy.close()
    found = [f"policy: {policy.name} is asked for {policy.query}, and grants nothing by itself."]
    if policy.first_problem is not None:
        found = [f"policy: {policy.name} can't be asked now. {policy.first_problem}"]
    off = [name for name in contract.policy.rules if contract.rules[name].mode is Mode.OFF]
    return found + [f"policy.rules: {name} is off, so there is nothing to ask." for name in off]


def _print(contract: Contract, *, as_json: bool, more: Sequence[str] = ()) -> None:
    if as_json:
        print(json.dumps(_as_json(contract, more)))
        return
    print(contract.to_yaml())
    print(f"# Recovery within {contract.recovery_within_s:g} s.")
    print("# Time-outs in the order in which they act, in seconds:")
    for rung in ladder(contract):
        print(f"#   {rung.key:<36}{rung.limit_s:>9.2f}{_end_of(rung)}".rstrip())
    for note in (*notes(contract), *more):
        print(f"# Note: {note}")


def _end_of(rung: Rung) -> str:
    if rung.ended_after_s is None:
        return ""
    late = "" if rung.is_within_recovery else ", too late to recover in time"
    return f"  job ended after {rung.ended_after_s:.2f}{late}"


def _as_json(contract: Contract, more: Sequence[str]) -> dict[str, Any]:
    return {
        "contract": contract.to_dict(),
        "recovery_within_s": contract.recovery_within_s,
        "ladder": [asdict(rung) for rung in ladder(contract)],
        "notes": [*notes(contract), *more],
    }
