"""Modules and functions stay short enough to be read at one go."""

import ast

from ._sources import path_of, trees

MOST_LINES_OF_A_MODULE = 400
MOST_LINES_OF_A_FUNCTION = 60


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, its docstring left out."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    assert docstring.end_lineno is not None
    return lines - (docstring.end_lineno - docstring.lineno + 1)


def test_modules_are_short() -> None:
    """
    No module is longer than 400 lines.
    """
    lines = {name: len(path_of(name).read_text("utf-8").splitlines()) for name in trees()}

    too_long = {name: number for name, number in lines.items() if number > MOST_LINES_OF_A_MODULE}
    assert too_long == {}, "split them by idea"


def test_functions_are_short() -> None:
    """
    No function is longer than 60 lines without its docstring.
    """
    lengths = {
        f"{module}.{node.name}": length(node)
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    too_long = {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FUNCTION}
    assert too_long == {}
