"""The contract: what a run promises, and what happens when it does not keep it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slav1.contract.document import KEYS, parts_from, rule_to_plain
from slav1.contract.error import ContractError, unknown_key, wrong_value
from slav1.contract.levels import LEVELS
from slav1.contract.policy_clause import PolicySettings, policy_to_plain
from slav1.contract.rule import Mode, Rule
from slav1.contract.settings import (
    CheckpointSettings,
    GradientSettings,
    MonitorSettings,
    SeedSettings,
)
from slav1.contract.typed import mapping_of, plain
from slav1.contract.yaml_file import read_yaml, write_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a run promises, clause by clause.

    Made by :meth:`level`, :meth:`load` or :meth:`from_dict`, changed by
    :meth:`override`. Every setting is there, whether the user wrote it or not.

    Example:
        >>> contract = Contract.level("L1").override(straggler={"mode": "off"})
        >>> contract.rules["straggler"].mode
        <Mode.OFF: 'off'>
    """

    level_name: str
    """Which of the levels it is: L1, L2 or L3."""

    mode: Mode | None = None
    """Mode of the rules that name none; None keeps each rule's own default. A rule that
    is off by default comes on only by its own name."""

    rules: Mapping[str, Rule]
    """Every rule this version has, by name."""

    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    """How checkpoints are written, verified, kept and gone back to."""

    seeds: SeedSettings = field(default_factory=SeedSettings)
    """What is done about seeds and random numbers."""

    gradients: GradientSettings = field(default_factory=GradientSettings)
    """What is read from gradients and done to them."""

    policy: PolicySettings | None = None
    """Who is asked about a breach besides the table; None asks nobody."""

    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    """How each node watches its ranks."""

    @property
    def recovery_within_s(self) -> float:
        """Longest time from a fault to the first step past the one it hit, in seconds."""
        return LEVELS[self.level_name].recovery_within_s

    @classmethod
    def level(cls, name: str) -> "Contract":
        """Returns the contract of a level as it is without any change.

        Args:
            name: ``L1`` for one machine, ``L2`` for several, ``L3`` for thousands of GPUs.

        Raises:
            ContractError: If there is no such level.
        """
        return cls.from_dict({"level": name})

    @classmethod
    def load(cls, path: Path | str) -> "Contract":
        """Reads a contract from a YAML file.

        Raises:
            ContractError: If the file can't be read, or says anything that can't be
                kept; the text names the file.
        """
        try:
            return cls(**parts_from(_read(path), Path(path).parent))
        except ContractError as error:
            raise error.in_file(str(path)) from error

    @classmethod
    def of(cls, source: "Contract | Path | str") -> "Contract":
        """Returns the contract that a user named: by level, by file, or itself.

        Raises:
            ContractError: If it is none of these.
        """
        if isinstance(source, Contract):
            return source
        if isinstance(source, str) and source in LEVELS:
            return cls.level(source)
        if isinstance(source, str | Path) and Path(source).exists():
            return cls.load(source)
        levels = ", ".join(LEVELS)
        value = str(source) if isinstance(source, Path) else source
        raise wrong_value("contract", value, f"a level ({levels}) or a YAML file that exists")

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], folder: Path | None = None) -> "Contract":
        """Makes a contract of plain values; undoes :meth:`to_dict`.

        Args:
            raw: The values.
            folder: Where relative paths begin; None for the working folder.

        Raises:
            ContractError: If it says anything that can't be kept.
        """
        return cls(**parts_from(raw, folder))

    def override(self, **clauses: Any) -> "Contract":
        """Returns the contract with some clauses changed.

        Args:
            clauses: By name of a rule, a mapping of what changes in it: ``mode``,
                ``action``, ``rule`` or any setting. A change of ``rule`` starts from
                the settings that the other form has by itself. Also ``monitor``,
                ``checkpoint``, ``seeds`` and ``gradients`` with mappings, ``policy`` with a
                path, an address or a mapping, and ``mode`` with a mode for all rules that are
                not off.

        Raises:
            ContractError: If a clause can't be kept.
        """
        raw = self.to_dict()
        if "mode" in clauses:
            raw["mode"] = clauses["mode"]
            for rule in raw["rules"].values():
                if rule["mode"] != Mode.OFF.value:
                    rule["mode"] = clauses["mode"]
        for name, clause in clauses.items():
            if name in ("monitor", "checkpoint", "seeds", "gradients"):
                raw[name] |= mapping_of(clause, name)
            elif name in ("mode", "policy"):
                raw[name] = clause
            elif name in KEYS:
                raise unknown_key(name, clause, (*self.rules, "mode", *KEYS[3:]))
            else:
                raw["rules"][name] = _changed(raw["rules"].get(name, {}), clause, name)
        return Contract.from_dict(raw)

    def to_dict(self) -> dict[str, Any]:
        """Writes the contract as plain values, every setting included.

        Returns:
            What a YAML file or JSON can hold: ``level, mode, rules, checkpoint, seeds,
            gradients, policy, monitor``; ``mode`` and ``policy`` only if they are set.
        """
        every = {
            "level": self.level_name,
            "mode": plain(self.mode),
            "rules": {name: rule_to_plain(rule) for name, rule in self.rules.items()},
            "checkpoint": plain(self.checkpoint),
            "seeds": plain(self.seeds),
            "gradients": plain(self.gradients),
            "policy": policy_to_plain(self.policy),
            "monitor": plain(self.monitor),
        }
        return {key: value for key, value in every.items() if value is not None}

    def to_yaml(self) -> str:
        """Writes the contract as the content of a file that :meth:`load` reads back."""
        return write_yaml(self.to_dict())


def _changed(rule: dict[str, Any], clause: object, name: str) -> dict[str, Any]:
    changes = mapping_of(clause, f"rules.{name}")
    if changes.get("rule", rule.get("rule")) == rule.get("rule"):
        return {**rule, **changes}
    return {key: rule[key] for key in ("mode", "action") if key in rule} | changes


def _read(path: Path | str) -> Any:
    try:
        raw = read_yaml(Path(path).read_text(encoding="utf-8"))
    except ContractError:
        raise
    except UnicodeDecodeError as error:
        raise ContractError("this is no text in UTF-8, so it is no contract.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ContractError(f"a contract can't be read there: {reason}.") from error
    if raw is None:
        raise ContractError("the file is empty; it needs at least a level, as in level: L1.")
    return raw
