"""The source files as syntax trees: what they import and where, without importing them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"


class Import(NamedTuple):
    """One imported module."""

    module: str
    imported: str
    is_at_once: bool
    """Whether importing ``module`` imports it; not when it stands in a function."""


@cache
def trees() -> dict[str, ast.Module]:
    """Every module below ``src`` by its name."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        name = ".".join(path.relative_to(SRC).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def path_of(module: str) -> Path:
    """The file of a module."""
    path = SRC.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def imports() -> tuple[Import, ...]:
    """Every import of every module, each once."""
    return tuple(dict.fromkeys(one for name, tree in trees().items() for one in _of(name, tree)))


def _of(module: str, tree: ast.Module) -> Iterator[Import]:
    for node, is_at_once in _nodes(tree, is_at_once=True):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, is_at_once)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield Import(module, whole if whole in trees() else node.module, is_at_once)


def _nodes(node: ast.AST, *, is_at_once: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, is_at_once
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _nodes(child, is_at_once=is_at_once and not is_function and not is_for_types)
