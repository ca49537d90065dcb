"""YAML text to plain values and back: safe, and without the language's surprises."""

import re
from collections.abc import Hashable
from typing import Any

import yaml

from slav1.contract.error import ContractError

_TAG = "tag:yaml.org,2002:"
_TOO_DEEP = "this is nested too deeply; a contract has three levels."
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "float",
        (
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        list("-+.0123456789"),
    ),
)


class _Loader(yaml.SafeLoader):
    """The safe types of YAML 1.2's core schema, in which ``off`` is text, 8e2 a number and
    010 ten; and a key that stands twice is an error."""


class _Dumper(yaml.SafeDumper):
    """Quotes every text that a reader of either YAML version would take for more."""


def read_yaml(text: str) -> Any:
    """Turns YAML text into mappings, lists, text, numbers, truth values and None.

    Args:
        text: One YAML document.

    Raises:
        ContractError: If it is no YAML, has a key twice, or asks for other types.
    """
    node = compose_yaml(text)
    return None if node is None else plain_of(node)


def compose_yaml(text: str) -> yaml.Node | None:
    """Turns YAML text into a tree that knows its places in the text.

    Args:
        text: One YAML document.

    Returns:
        Its root; None if it is empty.

    Raises:
        ContractError: If it is no YAML.
    """
    try:
        return yaml.compose(text, _Loader)
    except yaml.YAMLError as error:
        raise ContractError(_in_one_line(error)) from error
    except RecursionError as error:
        raise ContractError(_TOO_DEEP) from error


def plain_of(node: yaml.Node) -> Any:
    """Turns a tree of :func:`compose_yaml`, or a part of it, into plain values.

    Raises:
        ContractError: If it has a key twice, or asks for other types.
    """
    try:
        return _Loader("").construct_document(node)
    except yaml.YAMLError as error:
        raise ContractError(_in_one_line(error)) from error
    except RecursionError as error:
        raise ContractError(_TOO_DEEP) from error
    except ContractError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        # PyYAML lets these through when a value does not fit a !!tag written before it.
        raise ContractError(
            f"a value does not fit its tag: {error}. Leave out the !!tag."
        ) from error


def write_yaml(plain: Any) -> str:
    """Turns plain values into YAML text that :func:`read_yaml` reads back exactly."""
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=96)


def _in_one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    hint = " Indent with spaces." if "'\\t'" in problem else ""
    return f"{place}this is not YAML that a contract may use: {problem}.{hint}"


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    first_lines: dict[Hashable, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, Hashable):
            continue
        if key in first_lines:
            raise ContractError(
                f"line {line}: the key {key} stands here a second time, first in line "
                f"{first_lines[key]}. Keep one of them."
            )
        first_lines[key] = line
    return loader.construct_mapping(node, deep=True)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(
        loader.construct_scalar(node).lower().replace(".inf", "inf").replace(".nan", "nan")
    )


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), _first)
    _Dumper.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), _first)
_Loader.add_constructor(_TAG + "map", _construct_mapping)
_Loader.add_constructor(_TAG + "int", _construct_int)
_Loader.add_constructor(_TAG + "float", _construct_float)
_Dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign]
