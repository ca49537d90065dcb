"""The seed contract in a hand-written loop, on two real ranks."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from slav1.ledger import Entry, read_ledger

from ._runs import told

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

SET = {"mode": "set"}


def train(ranks: Any, *options: dict[str, Any], **how: Any) -> Any:
    """Runs trainings one after the other; returns what each rank told of each, by name."""
    ended = ranks("seeds_accelerate.py", json.dumps(options), **how)
    assert ended.succeeded(), ended
    names = [each["name"] for each in options]
    return {name: [told(out, name) for out in ended.out.values()] for name in names}


def masks(run: Any) -> list[list[Any]]:
    """The dropout masks of each rank, in order."""
    return [[drawn[2] for drawn in rank["drawn"]] for rank in run]


def num_twins(run: Any) -> list[int]:
    """For torch, Python and numpy: how many pairs of workers drew the same in any epoch."""
    found: dict[Any, list[list[float]]] = {}
    for rank, one in enumerate(run):
        for epoch, batch, _ in one["drawn"]:
            for worker, *numbers in batch:
                found.setdefault((rank, worker, epoch), []).append(numbers)
    assert len(found) == 8
    return [
        sum(
            [row[generator] for row in a] == [row[generator] for row in b]
            for a, b in itertools.combinations(found.values(), 2)
        )
        for generator in range(3)
    ]


def lines(run: Any, *kinds: str) -> list[Entry]:
    """Lines of a run's ledger about the rule."""
    entries = read_ledger(Path(run[0]["folder"]) / "ledger.jsonl")
    return [e for e in entries if e.rule == "seed_contract" and e.kind in kinds]


def audits(run: Any) -> dict[str, Entry]:
    """The lines about comparisons of all ranks, by moment."""
    found = lines(run, "notice")
    return {
        e.evidence["audit"]: e for e in found if e.evidence.get("audit") not in (None, "workers")
    }


def test_pc13_ranks_draw_numbers_of_their_own(ranks: Any) -> None:
    """
    With ``set_seed`` alike on all ranks the audit names the identical generators; with seeds
    set masks differ, rank 0 keeps its numbers, and a resumed run, whose generators are
    restored, draws what the unbroken one drew, the order of an epoch included that begins with
    the resume.
    """
    runs = train(
        ranks,
        {"name": "checked"},
        {"name": "set", "seeds": SET, "saves": "saved"},
        {"name": "resumed", "seeds": SET, "resumes": "saved"},
    )

    alike, apart = masks(runs["checked"]), masks(runs["set"])
    assert alike[0] == alike[1]
    said = audits(runs["checked"])["start"].message or ""
    assert "Identical generators on ranks 0, 1: numpy, python, torch." in said
    assert apart[0] == alike[0]
    assert not any(a == b for a, b in zip(*apart, strict=True))
    for rank in (0, 1):
        assert runs["resumed"][rank]["drawn"] == runs["set"][rank]["drawn"][2:]
    assert set(audits(runs["resumed"])) == {"resume"}
    assert not [e for run in runs.values() for e in lines(run, "breach")]


@pytest.mark.thorough
def test_pc14_workers_of_different_ranks_share_no_numbers(ranks: Any) -> None:
    """
    The host gives the workers of all ranks one seed, which the audit finds; with seeds set all
    eight streams differ in every generator.
    """
    runs = train(
        ranks,
        {"name": "checked", "num_workers": 2},
        {"name": "set", "num_workers": 2, "seeds": SET},
    )

    assert min(num_twins(runs["checked"])) > 0
    said = " ".join(e.message or "" for e in lines(runs["checked"], "notice"))
    assert "The torch generator of worker 0 on rank " in said
    assert num_twins(runs["set"]) == [0, 0, 0]
    assert not [e for run in runs.values() for e in lines(run, "breach")]


@pytest.mark.thorough
def test_weights_after_the_accelerator_come_from_one_seed(ranks: Any) -> None:
    """
    Where nobody has seeded, ranks that set seeds make the same weights, from ``SLA_SEED`` if
    there is one; a script with a seed for each rank keeps that of rank 0.
    """
    runs = train(
        ranks,
        {"name": "by_rank", "how": "by_rank", "seeds": SET},
        {"name": "by_contract", "how": "none", "seeds": {**SET, "seed": 3}},
        {"name": "by_variable", "how": "none"},
        env={"SLA_SEED": "3"},
    )

    made = [rank["made"] for run in runs.values() for rank in run]
    assert made == [made[0]] * 6
    sources = [audits(run)["start"].evidence["source"] for run in runs.values()]
    assert sources == ["script", "contract", "SLA_SEED"]


def test_replicas_that_start_apart_are_named(ranks: Any) -> None:
    """
    A rank whose weights are others than those that the wrapper copied is a breach before the
    first step.
    """
    runs = train(ranks, {"name": "apart"}, env={"SLA_INJECT": "seed:rank=1"})

    (found,) = lines(runs["apart"], "breach")
    assert (found.rank, found.step) == (1, 0)
    assert "0.0.weight" in (found.message or "")
