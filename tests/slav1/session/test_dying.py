"""What a process that ends without its host's goodbye says about itself."""

import pytest

from slav1.ledger import read_ledger

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SCRIPT = """
import multiprocessing
import sys
from pathlib import Path

from slav1.contract import Contract
from slav1.session import RunSettings, join
from slav1.session.rendezvous import Alone


def train():
    settings = RunSettings(
        contract=Contract.level("L1"),
        run_dir=Path("runs"),
        rank=0,
        local_rank=0,
        world_size=1,
    )
    join(settings, Alone())
    {end}


if __name__ == "__main__":
    if sys.argv[1] == "main":
        train()
    else:
        child = multiprocessing.get_context(sys.argv[1]).Process(target=train)
        child.start()
        child.join()
        sys.exit(child.exitcode)
"""


@pytest.fixture
def end(launch):
    """Runs a process that joins a run and ends in a given way; its exit code and ledger."""

    def run(how: str, started: str):
        ended = launch(SCRIPT.replace("{end}", how), num_ranks=1, args=[started])
        (ledger,) = launch.folder.glob("job-*/runs/*/ledger.jsonl")
        return ended.exit_codes[0], list(read_ledger(ledger))

    return run


@pytest.mark.parametrize("started", ["main", "fork", "spawn"])
@pytest.mark.parametrize(
    ("how", "error"),
    [("raise KeyError('lost key')", "KeyError: 'lost key'"), ("1 / 0", "ZeroDivisionError")],
)
def test_an_uncaught_exception_is_published(end, how, error, started):
    """
    A process that dies of an exception says of which, as a script and as a child of
    multiprocessing, forked or spawned; it does not count as lost without a word.
    """
    code, entries = end(how, started)

    (first,) = [entry for entry in entries if entry.kind == "first_exception"]
    assert code == 1
    assert error in first.message
    assert not [entry for entry in entries if entry.rule == "liveness" and entry.kind == "breach"]
    assert entries[-1].message == "Training ended by an exception on rank 0."


@pytest.mark.parametrize("started", ["fork", "spawn"])
def test_an_exit_because_of_an_exception_tells_that_exception(end, started):
    """
    A child that answers an exception with an exit code, as torch's launchers do, is said
    to have died of the exception.
    """
    how = "\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        sys.exit(3)"

    code, entries = end(how, started)

    (first,) = [entry for entry in entries if entry.kind == "first_exception"]
    assert code == 3
    assert "ZeroDivisionError" in first.message


@pytest.mark.parametrize("started", ["main", "fork", "spawn"])
@pytest.mark.parametrize("how", ["pass", "sys.exit(0)"])
def test_a_process_that_just_ends_is_in_order(end, how, started):
    """
    A process that ends without an exception says goodbye, however it was started.
    """
    code, entries = end(how, started)

    assert code == 0
    assert not [e.message for e in entries if e.kind in ("breach", "first_exception")]
    assert entries[-1].message == "Training ended."


def test_an_exception_that_was_handled_is_not_published(end):
    """
    Only what ends the process is told, not what it has dealt with.
    """
    code, entries = end(
        "\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        pass", "main"
    )

    assert code == 0
    assert not [entry for entry in entries if entry.kind == "first_exception"]
