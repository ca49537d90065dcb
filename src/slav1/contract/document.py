"""A contract as plain values, the form of its file, to its checked parts and back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slav1.contract.catalogue import COMMON_KEYS, default_variant, unknown_rule, variants
from slav1.contract.error import ContractError, unknown_key, wrong_value
from slav1.contract.levels import LEVELS, default_action, default_mode
from slav1.contract.policy_clause import policy_from
from slav1.contract.rule import Mode, Rule
from slav1.contract.settings import (
    CheckpointSettings,
    GradientSettings,
    MonitorSettings,
    SeedSettings,
)
from slav1.contract.typed import build, kinds_of, mapping_of, plain, typed
from slav1.decision import Action

KEYS = ("level", "mode", "rules", "checkpoint", "seeds", "gradients", "policy", "monitor")
"""Keys of a contract, in the order they are written."""


def parts_from(raw: object, folder: Path | None = None) -> dict[str, Any]:
    """Checks a contract in its plain form.

    Args:
        raw: A mapping with the key ``level`` and any of the other :data:`KEYS`.
        folder: Where relative paths begin; None for the working folder.

    Returns:
        The fields of a :class:`~slav1.contract.Contract`.

    Raises:
        ContractError: If it says anything that can't be kept.
    """
    given = mapping_of(raw, "")
    for key, value in given.items():
        if key not in KEYS:
            raise _unknown_top_key(key, value)
    level = _level_name(given)
    mode = typed(Mode, given["mode"], "mode") if "mode" in given else None
    return {
        "level_name": level,
        "mode": mode,
        "rules": _rules(mapping_of(given.get("rules", {}), "rules"), level, mode),
        "checkpoint": build(CheckpointSettings, given.get("checkpoint", {}), "checkpoint"),
        "seeds": build(SeedSettings, given.get("seeds", {}), "seeds"),
        "gradients": build(GradientSettings, given.get("gradients", {}), "gradients"),
        "policy": policy_from(given.get("policy"), list(variants()), folder),
        "monitor": build(MonitorSettings, given.get("monitor", {}), "monitor"),
    }


def rule_to_plain(rule: Rule) -> dict[str, Any]:
    """Writes one rule in its plain form, every setting included."""
    head = {
        "mode": rule.mode.value,
        "action": rule.action.name.lower(),
        "rule": rule.detector.VARIANT,
    }
    return {**head, **plain(rule.detector)}


def _rules(given: Mapping[str, Any], level: str, mode: Mode | None) -> dict[str, Rule]:
    known = variants()
    for name, clause in given.items():
        if name not in known:
            raise unknown_rule(name, clause)
    rules = {}
    for name in known:
        usual = default_mode(name)
        # A rule that is off for a reason comes on only by its own name.
        inherits = mode is not None and (name in given or usual is not Mode.OFF)
        rules[name] = _rule(name, given.get(name, {}), level, mode if mode and inherits else usual)
    return rules


def _rule(name: str, clause: object, level: str, mode: Mode) -> Rule:
    key = f"rules.{name}"
    given = mapping_of(clause, key)
    forms = variants()[name]
    form = given.get("rule", default_variant(forms))
    if not isinstance(form, str) or form not in forms:
        raise wrong_value(f"{key}.rule", form, f"one of {', '.join(sorted(forms))}")
    settings = {part: value for part, value in given.items() if part not in COMMON_KEYS}
    _check_names(key, settings, form, forms)
    kinds = kinds_of(forms[form])
    usual = {p: v for p, v in LEVELS[level].settings.get(name, {}).items() if p in kinds}
    action = default_action(name)
    return Rule(
        name=name,
        mode=typed(Mode, given["mode"], f"{key}.mode") if "mode" in given else mode,
        action=typed(Action, given["action"], f"{key}.action") if "action" in given else action,
        detector=build(forms[form], {**usual, **settings}, key),
    )


def _check_names(
    key: str, settings: Mapping[str, Any], form: str, forms: Mapping[str, type[Any]]
) -> None:
    kinds = kinds_of(forms[form])
    for name, value in settings.items():
        if name in kinds:
            continue
        error = unknown_key(f"{key}.{name}", value, (*COMMON_KEYS, *kinds))
        others = [other for other in sorted(forms) if name in kinds_of(forms[other])]
        hint = f" It is a setting of rule: {others[0]}, and rule: {form} is used." if others else ""
        raise ContractError(f"{error}{hint}", key=error.key, value=value)


def _level_name(given: Mapping[str, Any]) -> str:
    levels = ", ".join(LEVELS)
    if "level" not in given:
        raise ContractError(f"level is missing; it must be one of {levels}.", key="level")
    value = given["level"]
    if isinstance(value, str) and value in LEVELS:
        return value
    hint = f" Did you mean {value.upper()}?" if str(value).upper() in LEVELS else ""
    error = wrong_value("level", value, f"one of {levels}")
    raise ContractError(f"{error}{hint}", key="level", value=value)


def _unknown_top_key(key: str, value: object) -> ContractError:
    error = unknown_key(key, value, KEYS)
    if key not in variants():
        return error
    return ContractError(f"{error} The rule {key} stands under rules.", key=key, value=value)
