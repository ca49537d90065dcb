"""Every test says what it promises."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_test_states_its_promise() -> None:
    """
    Each test function has a docstring of one sentence or two.
    """
    silent = [
        f"{path.relative_to(TESTS)}: {node.name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        # Not those deeper down: a LightningModule has a test_step of its own.
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not (ast.get_docstring(node) or "").endswith((".", "!"))
    ]

    assert silent == []
