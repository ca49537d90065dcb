"""``sla contract``: what is printed is a contract again, and what is wrong is named."""

import json

import pytest

from slav1.cli.contract import notes
from slav1.contract import Contract, ladder

LEVELS = ("L1", "L2", "L3")


@pytest.mark.parametrize("level", LEVELS)
def test_what_show_prints_is_the_contract(sla, tmp_path, level):
    """
    What is printed for a level, ladder included, is a file that loads as that contract.
    """
    result = sla("contract", "show", level)

    path = tmp_path / "contract.yaml"
    path.write_text(result.out)
    assert (result.status, result.err) == (0, "")
    assert Contract.load(path) == Contract.level(level)


def test_show_prints_the_whole_ladder(sla):
    """
    Every limit is printed with its seconds, and the level's recovery time last.
    """
    out = sla("contract", "show", "L2").out

    lines = [line.split() for line in out.splitlines() if line.startswith("#   ")]
    printed = [(words[1], float(words[2])) for words in lines]
    assert printed == [(rung.key, rung.limit_s) for rung in ladder(Contract.level("L2"))]
    assert printed[-1] == ("recovery_within_s", 90.0)


def test_show_as_json_is_one_object(sla):
    """
    As JSON the contract, its recovery time, ladder and notes are one object on one line.
    """
    result = sla("contract", "show", "L3", "--json")

    printed = json.loads(result.out)
    assert result.out.count("\n") == 1
    assert Contract.from_dict(printed["contract"]) == Contract.level("L3")
    assert printed["recovery_within_s"] == 180
    assert printed["ladder"][0]["key"] == "monitor.tick_s"
    assert printed["notes"] == []


def test_check_prints_what_the_file_leads_to(sla, tmp_path):
    """
    A good file is printed with every default filled in.
    """
    path = tmp_path / "mine.yaml"
    path.write_text("level: L1\nrules: {hang: {limit_s: 7}}\n")

    result = sla("contract", "check", path)

    again = tmp_path / "again.yaml"
    again.write_text(result.out)
    assert result.status == 0
    assert Contract.load(again) == Contract.level("L1").override(hang={"limit_s": 7})


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", ""),
        ("level: L9", "level"),
        ("level: L1\nrules: {hang: {limit_z: 7}}", "rules.hang.limit_z"),
        ("level: L1\nmonitor: {port: -4}", "monitor.port"),
    ],
)
def test_check_refuses_a_bad_file_in_one_line(sla, tmp_path, text, key):
    """
    A file that is no contract ends with status 3 and one line that names file and key;
    as JSON also with an object that does.
    """
    path = tmp_path / "mine.yaml"
    path.write_text(text)

    plain, as_json = sla("contract", "check", path), sla("contract", "check", path, "--json")

    assert (plain.status, plain.out) == (3, "")
    assert plain.err.count("\n") == 1
    assert str(path) in plain.err
    assert key in plain.err
    printed = json.loads(as_json.out)
    assert (as_json.status, printed["contract"], printed["key"]) == (3, None, key)
    assert str(path) in printed["error"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"straggler": {"action": "isolate"}}, "rules.straggler.action"),
        ({"hang": {"limit_s": 29.0}}, "rules.hang.limit_s"),
        ({"policy": "slav1:stall.rego"}, "policy"),
    ],
)
def test_what_is_accepted_but_not_done_is_said(sla, tmp_path, change, part):
    """
    A clause that this version accepts without acting on it gets a note; status stays 0.
    """
    path = tmp_path / "mine.yaml"
    path.write_text(Contract.level("L1").override(**change).to_yaml())

    result = sla("contract", "check", path)

    assert result.status == 0
    assert [line for line in result.out.splitlines() if line.startswith(f"# Note: {part}")]


@pytest.mark.parametrize("level", LEVELS)
def test_a_plain_level_needs_no_note(level):
    """
    No level says anything by itself that this version does not do.
    """
    assert notes(Contract.level(level)) == []
    silent = {"straggler": {"action": "isolate", "mode": "off"}}
    assert notes(Contract.level(level).override(**silent)) == []
