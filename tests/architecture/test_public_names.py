"""The list of public names is frozen: a change of it is a decision, not an accident.

After such a decision, and its line in CHANGELOG.md:

    python tests/architecture/test_public_names.py

writes ``public_names.txt`` anew.
"""

import ast
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("public_names.txt")
SRC = Path(__file__).parents[2] / "src"
NEEDS = {"SLATrainer": "transformers", "SLATrainerCallback": "transformers"}
"""Names that need a package which is not always there."""


def exported(tree: ast.Module) -> list[str]:
    """The names in ``__all__``; without it every public class, function and constant."""
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned = [target.id for target in targets if isinstance(target, ast.Name)]
            if "__all__" in assigned:
                assert node.value is not None
                return list(ast.literal_eval(node.value))
            names += assigned
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
    return sorted(name for name in names if not name.startswith("_"))


def public_names() -> dict[str, list[str]]:
    """Names by package, and by module for those that lie directly in ``slav1``."""
    files = [*SRC.glob("*/__init__.py"), *SRC.glob("slav1/*/__init__.py"), *SRC.glob("slav1/*.py")]
    found = {}
    for path in sorted(set(files)):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        if not any(part.startswith("_") for part in module.split(".")):
            found[module] = exported(ast.parse(path.read_text(encoding="utf-8")))
    return found


def as_text(names_of: dict[str, list[str]]) -> str:
    return "".join(f"{module}: {', '.join(names)}\n" for module, names in names_of.items() if names)


def test_public_names_are_those_of_the_list() -> None:
    """
    What users can import is what the list says, no more and no less.
    """
    assert as_text(public_names()) == LIST.read_text(encoding="utf-8"), __doc__


@pytest.mark.slow
@pytest.mark.parametrize("module", public_names())
def test_public_names_exist(module: str) -> None:
    """
    Every name on the list can really be imported; where the package that it needs is missing, it
    is said what to install.
    """
    imported = importlib.import_module(module)

    for name in public_names()[module]:
        needed = NEEDS.get(name)
        if needed is None or find_spec(needed):
            assert hasattr(imported, name), name
        else:
            with pytest.raises(ModuleNotFoundError, match=f"pip install {needed}"):
                getattr(imported, name)


if __name__ == "__main__":
    LIST.write_text(as_text(public_names()), encoding="utf-8")
    sys.stdout.write(f"Wrote {LIST}.\n")
