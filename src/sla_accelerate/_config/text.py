"""Settings put into a YAML file's text, so that all else in it stays: keys, order, comments."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from slav1.contract.yaml_file import compose_yaml, write_yaml


class _NoPlaceError(ValueError):
    """There is no place in the text where the setting can simply be written."""


def with_settings(text: str, settings: Mapping[Sequence[str], Any]) -> tuple[str, bool]:
    """Puts settings into a text.

    Args:
        text: One YAML document that holds a mapping.
        settings: Plain scalars, by path.

    Returns:
        The new text, and whether it had to be written anew, which loses comments.

    Raises:
        ValueError: If something else than a mapping stands on the way.
    """
    wanted = yaml.safe_load(text)
    for path, value in settings.items():
        _set(wanted, path, value)
    try:
        changed = text
        for path, value in settings.items():
            changed = _written(changed, list(path), value)
        if _order(yaml.safe_load(changed)) == _order(wanted):
            return changed, False
    except (_NoPlaceError, yaml.YAMLError):
        pass
    return yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True), True


def with_settings_in_json(text: str, settings: Mapping[Sequence[str], Any]) -> str:
    """The same for JSON, in the form in which Accelerate writes it."""
    wanted = json.loads(text)
    for path, value in settings.items():
        _set(wanted, path, value)
    return json.dumps(wanted, indent=2) + "\n"


def _set(plain: Any, path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        if plain.get(key) is None:
            plain[key] = {}
        plain = plain[key]
        if not isinstance(plain, dict):
            raise ValueError(f"{'.'.join(path)} has no place, since {key} is no mapping.")  # noqa: TRY004 - it stands in a file
    plain[path[-1]] = value


def _order(plain: Any) -> str:
    return json.dumps(plain, default=str)


def _written(text: str, path: list[str], value: Any) -> str:
    node: Any = compose_yaml(text)
    column = node.start_mark.column
    while path:
        if node.flow_style:
            raise _NoPlaceError
        key = path.pop(0)
        pair = next((pair for pair in node.value if pair[0].value == key), None)
        if pair is None:
            at = _end_of_line(text, _last_index(node))
            return text[:at] + _lines([key, *path], value, column, text) + text[at:]
        name, node = pair
        if path and not (isinstance(node, yaml.MappingNode) and node.value):
            # Nothing, or an empty mapping, gives way to what it is to hold.
            body = _lines(path, value, name.start_mark.column + 2, text)
            return text[: node.start_mark.index].rstrip(" ") + body + text[node.end_mark.index :]
        column = node.start_mark.column
    if not isinstance(node, yaml.ScalarNode) or node.style in ("|", ">"):
        raise _NoPlaceError
    return text[: node.start_mark.index] + _scalar(value) + text[node.end_mark.index :]


def _lines(path: Sequence[str], value: Any, column: int, text: str) -> str:
    """A setting with all that it stands in, each on a line of its own; begins a new line."""
    newline = "\r\n" if "\r\n" in text else "\n"
    *above, last = path
    lines = [f"{' ' * (column + 2 * depth)}{key}:" for depth, key in enumerate(above)]
    lines.append(f"{' ' * (column + 2 * len(above))}{last}: {_scalar(value)}")
    return newline + newline.join(lines)


def _scalar(value: Any) -> str:
    return write_yaml([value]).strip()[1:-1]


def _last_index(node: Any) -> int:
    """Where the last character of a block is written; its own end comes after comments."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _last_index(last[1] if isinstance(last, tuple) else last)
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        raise _NoPlaceError
    return int(node.end_mark.index)


def _end_of_line(text: str, index: int) -> int:
    end = text.find("\n", index)
    end = len(text) if end < 0 else end
    return end - 1 if text[index:end].endswith("\r") else end
