"""The table of parity: every clause, host and strategy has a test that is there, or a reason."""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from slav1.contract import Contract

from ._families import needs_transformers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "parity.md"
STRATEGIES = ("DDP", "FSDP", "FSDP2", "DeepSpeed")
HOSTS = {"Lightning", "Accelerate", "transformers"}
BEYOND_RULES = {
    *("update left out", "rollback", "resume", "restart", "checkpoints proved"),
    *("damaged one passed over", "stop", "skip_batches", "snapshot", "clip_and_decay"),
    *("throttle_io", "seeds set", "policy"),
}
ENTRY = re.compile(
    r"\[(?P<shown>[^\]@]+)(?:@(?P<own>[^\]]+))?\]\(#(?P<kind>test|note)-(?P<key>\S+)\)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One clause in one host with one strategy."""

    host: str
    clause: str
    strategy: str
    """As the tests call it."""
    text: str

    def entries(self) -> list[re.Match[str]]:
        """What it says, one by one; none if it says nothing that can be read."""
        found = [ENTRY.fullmatch(part) for part in self.text.split(", ")]
        return [one for one in found if one] if all(found) else []


def rows(title: str) -> list[list[str]]:
    """The rows of the table under a title, its head first."""
    _, _, rest = PAGE.read_text().partition(f"\n## {title}\n")
    lines = rest.partition("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|") and not line.startswith("| ---")]
    return [[part.strip() for part in line.strip("|").split(" | ")] for line in table]


def hosts() -> list[str]:
    """The hosts that have a table."""
    titles = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    return [title for title in titles if title not in ("Tests", "Reasons")]


def cells() -> list[Cell]:
    """All cells of all hosts."""
    found = []
    for host in hosts():
        head, *body = rows(host)
        names = [re.sub(r".*`(.+)`.*", r"\1", column) for column in head[2:]]
        for row in body:
            assert len(row) == len(head), f"{host}, {row[0]}: {len(row)} cells"
            for name, text in zip(names, row[2:], strict=True):
                clause = row[0].strip("`")
                found.append(Cell(host=host, clause=clause, strategy=name, text=text))
    return found


def named(title: str) -> dict[str, str]:
    """What the entries of a table at the end of the page stand for, by their anchors."""
    return {
        re.sub(r'.*id="(?:test|note)-([^"]+)".*', r"\1", first): second.strip("`")
        for first, second in rows(title)[1:]
    }


def proofs_of(cell: Cell) -> list[str]:
    """The tests that a cell names, with their parameters."""
    known = named("Tests")
    return [
        known[one["key"]]
        .replace("HOST", cell.host.lower())
        .replace("STRATEGY", one["own"] or cell.strategy)
        .replace("CLAUSE", cell.clause)
        for one in cell.entries()
        if one["kind"] == "test"
    ]


def test_every_clause_has_a_row_in_every_host() -> None:
    """
    Each rule of the contract, and each thing that the contract does beyond rules, has one row
    for each host, with a cell for each strategy and a file that proves it by itself.
    """
    wanted = {*Contract.level("L3").rules, *BEYOND_RULES}
    assert set(hosts()) >= HOSTS
    for host in hosts():
        head, *body = rows(host)
        assert [column.split(" ")[0] for column in head[2:]] == list(STRATEGIES)
        assert sorted(row[0].strip("`") for row in body) == sorted(wanted), host
        for row in body:
            (path,) = re.findall(r"\(\.\./(\S+)\)", row[1])
            assert (ROOT / path).is_file(), f"{host}, {row[0]}: {path}"


def test_every_cell_names_a_test_or_a_reason() -> None:
    """
    Each cell leads to tests whose functions are there, or to a reason that stands on the page,
    and nothing on the page is left over.
    """
    tests, reasons = named("Tests"), named("Reasons")
    used = {"test": set(), "note": set()}
    for cell in cells():
        assert cell.entries(), f"neither a test nor a reason: {cell}"
        for one in cell.entries():
            used[one["kind"]].add(one["key"])
    assert used == {"test": set(tests), "note": set(reasons)}
    for path, _, name in (test.partition("::") for test in tests.values()):
        tree = ast.parse((ROOT / path).read_text())
        functions = {part.name for part in tree.body if isinstance(part, ast.FunctionDef)}
        assert name.partition("[")[0] in functions, f"{path} has no {name}"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    "named_hosts",
    [
        pytest.param(("Lightning", "Accelerate"), id="lightning-accelerate"),
        pytest.param(("transformers",), id="transformers", marks=needs_transformers),
    ],
)
def test_the_proofs_of_every_cell_are_there_with_their_parameters(
    named_hosts: tuple[str, ...],
) -> None:
    """
    pytest itself finds each test that a cell leads to, with the parameters of its cell.
    """
    mine = [cell for cell in cells() if cell.host in named_hosts]
    wanted = {(test, cell) for cell in mine for test in proofs_of(cell)}
    files = sorted({test.partition("::")[0] for test, _ in wanted})
    options = ["--collect-only", "-q", "-o", "addopts=--import-mode=importlib"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-2000:]
    there = set(found.stdout.splitlines())
    assert wanted
    assert [(test, cell) for test, cell in sorted(wanted, key=str) if test not in there] == []
