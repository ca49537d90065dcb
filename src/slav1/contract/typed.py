"""Plain values to checked settings, and back."""

import contextlib
import dataclasses
import math
import types
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from slav1.contract.error import ContractError, did_you_mean, shown, unknown_key, wrong_value


def build(settings: type, raw: object, key: str) -> Any:
    """Makes checked settings from a mapping as YAML or JSON has it.

    Args:
        settings: A dataclass; its fields are the keys, its defaults fill the rest.
        raw: The mapping.
        key: Path of the mapping in the contract, for error texts.

    Returns:
        An instance of ``settings``.

    Raises:
        ContractError: If a key is unknown, or a value has the wrong type or is
            refused by the dataclass.
    """
    given = mapping_of(raw, key)
    kinds = kinds_of(settings)
    for name, value in given.items():
        if name not in kinds:
            raise unknown_key(f"{key}.{name}", value, kinds)
    values = {name: typed(kinds[name], given[name], f"{key}.{name}") for name in given}
    try:
        return settings(**values)
    except (TypeError, ValueError) as error:
        raise _refused(key, given, str(error)) from error


def typed(kind: Any, value: object, key: str) -> Any:
    """Turns one plain value into the type of the field it is for.

    Args:
        kind: The field's annotation: ``bool``, ``int``, ``float``, ``str``, an enum, a
            ``Literal``, a dataclass; or a tuple, mapping or union with None of these.
        value: What came.
        key: Path of the key, for error texts.

    Raises:
        ContractError: If the value has another type.
    """
    if get_origin(kind) in (Union, types.UnionType):
        return None if value is None else typed(_without_none(kind), value, key)
    if dataclasses.is_dataclass(kind):
        return build(kind, value, key)  # type: ignore[arg-type]
    if get_origin(kind) is tuple:
        return _typed_list(get_args(kind)[0], value, key)
    if _is_mapping(kind):
        names, values = get_args(kind)
        return {
            typed(names, name, f"{key}.{name}"): typed(values, part, f"{key}.{name}")
            for name, part in mapping_of(value, key).items()
        }
    if (words := _words(kind)) is not None:
        return _one_of(words, value, key)
    return _typed_scalar(kind, value, key)


def plain(value: Any) -> Any:
    """Turns settings into what YAML and JSON can hold; undone by :func:`typed`."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {plain(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def mapping_of(raw: object, key: str) -> dict[str, Any]:
    """Returns ``raw`` if it is a mapping with text keys.

    Raises:
        ContractError: If it is anything else.
    """
    if not isinstance(raw, Mapping):
        raise wrong_value(key, raw, "a mapping of names to values")
    for name in raw:
        if not isinstance(name, str):
            raise ContractError(
                f"{key or 'the contract'} has the key {shown(name)}; a key must be a name, "
                "written as text.",
                key=key,
                value=name,
            )
    return dict(raw)


def kinds_of(settings: type) -> dict[str, Any]:
    """Returns name and annotation of every field of a settings dataclass."""
    hints = get_type_hints(settings)
    return {field.name: hints[field.name] for field in dataclasses.fields(settings) if field.init}


def _typed_scalar(kind: type, value: object, key: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        return _finite(value, key)  # type: ignore[arg-type]
    if kind is int and is_number and isinstance(value, int):
        return value
    if kind in (bool, str) and isinstance(value, kind):
        return value
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    raise wrong_value(key, value, names[kind])


def _finite(value: float, key: str) -> float:
    # A whole number may be too large for one with a fraction.
    with contextlib.suppress(OverflowError):
        if math.isfinite(number := float(value)):
            return number
    raise wrong_value(key, value, "a finite number; to leave a rule out set its mode to off")


def _typed_list(kind: Any, value: object, key: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise wrong_value(key, value, "a list")
    return tuple(typed(kind, part, f"{key}[{i}]") for i, part in enumerate(value))


def _words(kind: Any) -> dict[str, Any] | None:
    if get_origin(kind) is Literal:
        return {word: word for word in get_args(kind)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {member.name.lower(): member for member in kind}
    return None


def _one_of(words: Mapping[str, Any], value: object, key: str) -> Any:
    # Many YAML readers take a bare off for the truth value false.
    word = "off" if value is False and "off" in words else value
    if isinstance(word, str) and word in words:
        return words[word]
    if isinstance(value, Enum) and value in words.values():
        return value
    needed = f"one of {', '.join(words)}"
    error = wrong_value(key, value, needed)
    hint = did_you_mean(word, words) if isinstance(word, str) else ""
    raise ContractError(f"{error}{hint}", key=key, value=value)


def _without_none(kind: Any) -> Any:
    (only,) = [part for part in get_args(kind) if part is not types.NoneType]
    return only


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _refused(key: str, given: Iterable[str], reason: str) -> ContractError:
    # Range checks name the setting in their text; the first one named is the one meant.
    words = reason.replace(",", " ").replace(":", " ").split()
    named = next((word for word in words if word in given), None)
    path = f"{key}.{named}" if named else key
    return ContractError(f"{path}: {reason}", key=path)
