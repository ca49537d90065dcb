"""The seed contract in Lightning, on two real ranks: public cases PC-13 to PC-15."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from slav1.ledger import Entry, read_ledger

from ._runs import told

pytestmark = [pytest.mark.ranks, pytest.mark.slow]

GENERATORS = ("torch", "python", "numpy")
SET = {"mode": "set"}


def train(ranks: Any, *options: dict[str, Any], num_ranks: int = 2, **how: Any) -> Any:
    """Runs trainings one after the other; returns what each rank told of each, by name."""
    ended = ranks("seeds_lightning.py", json.dumps(options), num_ranks=num_ranks, **how)
    assert ended.succeeded(), ended
    names = [each["name"] for each in options]
    return {name: [told(ended.out[rank], name) for rank in range(num_ranks)] for name in names}


def masks(run: Any) -> list[list[Any]]:
    """The dropout masks of each rank, in order."""
    return [[drawn[2] for drawn in rank["drawn"]] for rank in run]


def streams(run: Any) -> dict[tuple[int, int, int], list[list[float]]]:
    """What each worker of each rank drew in each epoch: a row an item."""
    found: dict[tuple[int, int, int], list[list[float]]] = {}
    for rank, one in enumerate(run):
        for epoch, batch, _ in one["drawn"]:
            for worker, *numbers in batch:
                found.setdefault((rank, int(worker), epoch), []).append(numbers)
    return found


def twins(run: Any, generator: int) -> set[frozenset[tuple[int, int, int]]]:
    """Pairs of streams that drew the same with one generator."""
    table = streams(run)
    columns = {where: [row[generator] for row in rows] for where, rows in table.items()}
    pairs = itertools.combinations(columns, 2)
    return {frozenset(pair) for pair in pairs if columns[pair[0]] == columns[pair[1]]}


def lines(run: Any, *kinds: str) -> list[Entry]:
    """Lines of a run's ledger about the rule."""
    entries = read_ledger(Path(run[0]["folder"]) / "ledger.jsonl")
    return [e for e in entries if e.rule == "seed_contract" and e.kind in kinds]


def pairs(entries: list[Entry]) -> list[tuple[str, ...]]:
    """Streams that lines call equal: generator, then rank, epoch and worker of both."""
    one = r"worker (?P<w{0}>\d+) on rank (?P<r{0}>\d+) in epoch (?P<e{0}>\d+)"
    text = " ".join(entry.message or "" for entry in entries)
    pattern = rf"The (?P<g>\w+) generator of {one.format(1)} begins as that of {one.format(2)}"
    names = ("g", "r1", "e1", "w1", "r2", "e2", "w2")
    return [match.group(*names) for match in re.finditer(pattern, text)]


def audit(run: Any, moment: str) -> Entry:
    """The line about one comparison of all ranks."""
    (found,) = [e for e in lines(run, "notice") if e.evidence.get("audit") == moment]
    return found


def test_pc13_ranks_draw_numbers_of_their_own(ranks: Any) -> None:
    """
    Where a script seeds all ranks alike the audit names the generators that are identical and
    changes nothing; with seeds set the weights start equal, the masks differ, rank 0 keeps its
    numbers, and a second run draws the same again.
    """
    runs = train(
        ranks,
        {"name": "bare", "watched": False},
        {"name": "checked"},
        {"name": "set", "seeds": SET},
        {"name": "again", "seeds": SET},
        {"name": "grouped", "seeds": {**SET, "groups": [[0, 1]]}},
    )

    alike, apart = masks(runs["checked"]), masks(runs["set"])
    assert alike == masks(runs["bare"]) and alike[0] == alike[1]
    said = audit(runs["checked"], "start").message or ""
    assert "Identical generators on ranks 0, 1: numpy, python, torch." in said
    assert apart[0] == alike[0]
    assert not any(a == b for a, b in zip(*apart, strict=True))
    assert runs["set"][0]["first"] == runs["set"][1]["first"]
    for rank in (0, 1):
        assert runs["again"][rank]["drawn"] == runs["set"][rank]["drawn"]
    given = audit(runs["set"], "start").evidence
    assert (given["seed"], given["source"], given["noted"]) == (3, "script", [])
    assert masks(runs["grouped"]) == alike
    assert audit(runs["grouped"], "start").evidence["noted"] == []
    assert not [
        e for run in runs.values() if run[0]["folder"] != "None" for e in lines(run, "breach")
    ]


def check_apart(run: Any) -> None:
    """All streams of both ranks' workers in both epochs differ, in every generator."""
    assert len(streams(run)) == 8
    assert [twins(run, number) for number in range(3)] == [set(), set(), set()]
    assert lines(run, "breach") == []


def test_pc14_workers_share_no_numbers(ranks: Any) -> None:
    """
    Workers whose start seeds numpy alike are found within a rank, across ranks and across
    epochs, by generator; with seeds set every stream of every generator is another one, in
    both runs the same, and the user's own start was called and is given back.
    """
    workers = {"num_workers": 2, "own_start": True}
    runs = train(
        ranks,
        {"name": "checked", **workers},
        {"name": "set", "seeds": SET, **workers},
        {"name": "again", "seeds": SET, **workers},
    )

    numpy = GENERATORS.index("numpy")
    assert frozenset({(0, 0, 0), (0, 1, 0)}) in twins(runs["checked"], numpy)
    said = pairs(lines(runs["checked"], "notice"))
    of_workers = [pair for pair in said if pair[1:3] == pair[4:6]]
    of_ranks = [pair for pair in said if pair[1] != pair[4]]
    of_epochs = [pair for pair in said if pair[2] != pair[5]]
    # Ranks that are seeded alike start their workers alike, in every generator.
    assert {generator for generator, *_ in of_ranks} == set(GENERATORS)
    assert {generator for generator, *_ in of_workers} == {"numpy"}
    assert {generator for generator, *_ in of_epochs} == {"numpy"}
    check_apart(runs["set"])
    for rank in (0, 1):
        assert runs["again"][rank]["drawn"] == runs["set"][rank]["drawn"]
    assert all(rank["own_start_left"] for run in runs.values() for rank in run)


@pytest.mark.thorough
def test_pc14_persistent_workers_share_no_numbers(ranks: Any) -> None:
    """
    Workers that live over epochs go on with their numbers, and no two draw the same.
    """
    how = {"num_workers": 2, "own_start": True, "is_persistent": True}
    runs = train(ranks, {"name": "persistent", "seeds": SET, **how})

    check_apart(runs["persistent"])


def test_pc15_seeds_by_rank_are_no_fault(ranks: Any) -> None:
    """
    A script that seeds each rank differently on purpose, with weights made before the wrapper
    copies them and a batch norm of each rank's own, gets a note and no breach.
    """
    runs = train(ranks, {"name": "by_rank", "how": "by_rank", "num_epochs": 25})

    found = audit(runs["by_rank"], "start")
    assert found.evidence["noted"] == ["The script gives each rank a seed of its own."]
    assert len(set(found.evidence["generators"]["torch"])) == 2
    assert lines(runs["by_rank"], "breach") == []


@pytest.mark.thorough
def test_a_made_seed_goes_with_the_checkpoint(ranks: Any) -> None:
    """
    Where nobody seeds, each run makes its weights, order and noise from another seed, equal
    weights on both ranks; one that is resumed takes the saved run's, and goes on bit for bit.
    """
    made = {"how": "none", "late": True, "seeds": SET, "num_epochs": 4}
    runs = train(
        ranks,
        {"name": "made", "saves_every": 3, **made},
        {"name": "other", **made},
        {"name": "resumed", "resumes": "last_good", **made},
    )

    first, other = runs["made"], runs["other"]
    assert first[0]["first"] == first[1]["first"] != other[0]["first"]
    assert [e.evidence["source"] for e in (audit(first, "start"), audit(other, "start"))] == [
        "made",
        "made",
    ]
    found = audit(runs["resumed"], "resume").evidence
    assert (found["seed"], found["source"]) == (
        audit(first, "start").evidence["seed"],
        "earlier start",
    )
    for rank in (0, 1):
        assert runs["resumed"][rank]["drawn"] == first[rank]["drawn"][6:]
    assert not [e for run in runs.values() for e in lines(run, "breach")]


def test_a_single_process_keeps_its_numbers(ranks: Any) -> None:
    """
    With one process setting seeds changes neither what a seeded script draws nor what an
    unseeded one does, in workers too; a seed that is asked for is taken, and given back.
    """
    workers = {"num_workers": 2, "own_start": True}
    unseeded = {"how": "none", "late": True}
    runs = train(
        ranks,
        {"name": "bare", "watched": False, **workers},
        {"name": "set", "seeds": SET, **workers},
        {"name": "bare_unseeded", "watched": False, **unseeded},
        {"name": "unseeded", "seeds": SET, **unseeded},
        {"name": "asked", "seeds": {**SET, "seed": 3}, **unseeded},
        num_ranks=1,
    )

    assert runs["set"][0]["drawn"] == runs["bare"][0]["drawn"]
    assert runs["set"][0]["own_start_left"]
    assert runs["unseeded"][0]["drawn"] == runs["bare_unseeded"][0]["drawn"]
    assert runs["asked"][0]["first"] == runs["bare"][0]["first"]
    assert runs["asked"][0]["first"] != runs["unseeded"][0]["first"]
    assert runs["asked"][0]["seed_left"] is None


def test_replicas_that_start_apart_are_named(ranks: Any) -> None:
    """
    A rank whose weights are others than those that the wrapper copied is a breach before the
    first step, with the rank and the first parameter that differs.
    """
    runs = train(ranks, {"name": "apart"}, env={"SLA_INJECT": "seed:rank=1"})

    (found,) = lines(runs["apart"], "breach")
    assert (found.rank, found.step) == (1, 0)
    assert "rank 1 differ" in (found.message or "") and "network.0.weight" in (found.message or "")
