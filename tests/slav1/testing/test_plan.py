"""Where planned faults come from."""

import logging
import subprocess
import sys

import pytest

from slav1.testing import clear, inject, planned_faults


@pytest.fixture(autouse=True)
def nothing_planned(monkeypatch):
    monkeypatch.delenv("SLA_INJECT", raising=False)
    clear()
    yield
    clear()


def kinds(rank, world_size=2, **more):
    faults = planned_faults(rank, world_size, **more)
    return None if faults is None else [fault.kind for fault in faults.planned]


def test_without_a_plan_there_is_nothing():
    """
    A training without faults gets None, so that it can skip every call.
    """
    assert planned_faults(0, 1) is None
    assert planned_faults(1, 2) is None


def test_a_plan_ends_with_its_block():
    """
    A fault planned by ``with`` is gone after the block, and only that one.
    """
    inject("kill", rank=0, step=9)
    with inject("hang", step=3) as fault:
        inside = kinds(0), kinds(1)

    assert fault.step == 3
    assert inside == (["kill"], ["hang"])
    assert (kinds(0), kinds(1)) == (["kill"], None)


def test_a_plain_call_lasts_until_it_is_cleared():
    """
    A fault planned by a plain call stays, until all are cleared.
    """
    inject("nan", rank="all", step=3, what="batch")
    before = kinds(0)
    clear()

    assert (before, kinds(0)) == (["nan"], None)


def test_the_environment_plans_several(monkeypatch):
    """
    ``SLA_INJECT`` holds faults separated by semicolons; each rank gets its own.
    """
    monkeypatch.setenv("SLA_INJECT", " hang:rank=1,step=60 ; kill:rank=0,step=3;nan:step=1; ")

    assert (kinds(0), kinds(1)) == (["kill"], ["hang", "nan"])
    assert kinds(0, attempt=1) is None


def test_code_wins_over_the_environment(monkeypatch, caplog):
    """
    What was planned in code is all there is, and the log says where it came from.
    """
    monkeypatch.setenv("SLA_INJECT", "hang:rank=1,step=60")
    inject("kill", rank=1, step=3)

    with caplog.at_level(logging.WARNING):
        assert kinds(1) == ["kill"]
    assert "planned by inject()" in caplog.text


def test_a_mistake_in_the_environment_names_the_variable(monkeypatch):
    """
    A text that is no fault is refused on every rank, whoever it was meant for.
    """
    monkeypatch.setenv("SLA_INJECT", "hang:rank=1,step=60;kil:step=1")

    with pytest.raises(ValueError, match="SLA_INJECT: Fault 'kil' must be one of"):
        planned_faults(0, 2)


def test_importing_imports_no_torch():
    """
    Planning faults needs no torch, nor any host.
    """
    code = (
        "import sys, slav1.testing as t; t.inject('nan', step=1); t.planned_faults(1, 2); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'lightning', 'accelerate')))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
