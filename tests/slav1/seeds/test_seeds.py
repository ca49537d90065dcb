"""The seed contract of one rank, among ranks that are threads."""

import json
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from slav1.contract import SeedSettings
from slav1.seeds import Choice, Seeds, digests, place_of, put_back, script_seed, set_first, take
from slav1.testing import ThreadPeers, run_ranks


def seeds_of(peers: Any, folder: Any, **settings: Any) -> Seeds:
    return Seeds(SeedSettings(**settings), peers, folder, {})


def test_a_parameter_that_differs_is_looked_for_only_if_one_does(tmp_path):
    """
    Ranks that hold the same meet once; if one does not they meet again, rank 0 writes one line
    with the rank and the parameter, and nobody else writes any.
    """

    def work(peers: ThreadPeers, *, odd: int) -> Any:
        weights = {"a": torch.ones(2), "b": torch.full((2,), float(peers.rank == odd))}
        judged = seeds_of(peers, tmp_path).compare("start", step=0, weights=weights)
        return peers.num_gathers, peers.records, judged

    same = run_ranks(lambda peers: work(peers, odd=-1), 3)
    apart = run_ranks(lambda peers: work(peers, odd=2), 3)

    assert [one[0] for one in same] == [1, 1, 1]
    assert [one[0] for one in apart] == [2, 2, 2]
    assert [len(one[1]) for one in apart] == [1, 0, 0]
    (line,) = apart[0][1]
    assert (line[2]["rule"], line[2]["audit"], line[2]["at_fault"]) == (
        "seed_contract",
        "start",
        [2],
    )
    assert "parameter b" in line[2]["wrong"][0]
    json.dumps(line[2])


def test_a_single_process_is_not_told_what_it_has_no_use_for(tmp_path):
    """
    One rank writes a line only if something is wrong, or if seeds were set; what several ranks
    compare is always written, and shown only if there is something to remark.
    """

    def work(peers: ThreadPeers, **settings: Any) -> Any:
        seeds_of(peers, tmp_path, **settings).compare("start", step=0, weights={})
        return [(line["is_quiet"], len(line["wrong"])) for _, _, line in peers.records]

    assert run_ranks(work, 1) == [[]]
    assert run_ranks(lambda peers: work(peers, deterministic=True), 1) == [[(False, 1)]]
    # Threads share the process's generators, which is remarked.
    assert run_ranks(work, 2) == [[(False, 0)], []]
    assert run_ranks(lambda peers: work(peers, groups=((0, 1),)), 2)[0][0][1] == 0


def test_weights_that_can_not_be_read_end_no_training(tmp_path):
    """
    Weights of a kind that has no bytes are left out of the comparison, and it is said.
    """

    def work(peers: ThreadPeers) -> Any:
        weights = {"a": torch.empty(2, device="meta")}
        judged = seeds_of(peers, tmp_path).compare("start", step=0, weights=weights)
        return judged.wrong, [message for _, message, _ in peers.records]

    wrong, said = run_ranks(work, 2)[0]

    assert wrong == ()
    assert "First weights can't be compared" in said[0]


def test_a_rank_that_does_not_come_ends_no_training(tmp_path):
    """
    Where a rank is lost the others go on without the comparison, and the ledger says why.
    """

    def work(peers: ThreadPeers) -> Any:
        if peers.rank == 1:
            return None
        return seeds_of(peers, tmp_path).compare("resume", step=7, weights={}), peers.records

    judged, records = run_ranks(work, 2)[0]

    assert judged is None
    assert "not compared at the resume" in records[0][1] and "missing [1]" in records[0][1]


def test_a_contract_that_leaves_seeds_alone_meets_nobody(tmp_path):
    """
    With mode ``off`` nothing is compared, set or watched.
    """

    def work(peers: ThreadPeers) -> int:
        seeds = seeds_of(peers, tmp_path, mode="off")
        seeds.begin()
        seeds.compare("start", step=0, weights={})
        seeds.watch([torch.utils.data.DataLoader([1], num_workers=1)], 0)
        seeds.tell_workers(0)
        return peers.num_gathers + len(peers.records)

    assert run_ranks(work, 2) == [0, 0]


def test_a_later_start_of_a_run_has_its_seed(tmp_path):
    """
    All ranks get rank 0's seed, and a run that is started again gets the one it had; a script
    that seeds torch keeps what torch draws.
    """
    kept = take()

    def work(peers: ThreadPeers) -> Any:
        seeds = seeds_of(peers, tmp_path, mode="set")
        seeds.begin(script=None)
        return seeds.choice

    try:
        # As in a new process.
        torch.seed()
        assert script_seed() is None
        first, second = run_ranks(work, 2), run_ranks(work, 2)
        torch.manual_seed(11)
        torch.rand(3)
        before = digests(take())
        scripted = run_ranks(work, 2)
        after = digests(take())
    finally:
        put_back(kept)

    assert {one.source for one in first} == {"made"} and len({one.seed for one in first}) == 1
    assert {(one.seed, one.source) for one in second} == {(first[0].seed, "earlier start")}
    assert set(scripted) == {(11, "script")}
    assert after["torch"] == before["torch"]


def test_a_seed_that_cannot_be_kept_is_told(tmp_path):
    """
    Where the run folder takes no file the run begins all the same, and rank 0 says what a later
    start will lack.
    """
    kept = take()

    def work(peers: ThreadPeers) -> Any:
        seeds_of(peers, tmp_path / "gone", mode="set", seed=7).begin(script=None)
        return [message for _, message, _ in peers.records]

    try:
        told = run_ranks(work, 2)
    finally:
        put_back(kept)

    assert [len(messages) for messages in told] == [1, 0]
    assert told[0][0].startswith("The seed 7 could not be kept for later starts of this run")


def test_a_group_of_ranks_that_are_not_there_is_refused(tmp_path):
    """
    A group that names a rank beyond the run's is refused by key and number.
    """
    (refused,) = run_ranks(lambda peers: seeds_of(peers, tmp_path, groups=((0, 3),)), 1)

    assert isinstance(refused, ValueError)
    assert "seeds.groups names rank 3, but the run has 1 ranks" in str(refused)


@pytest.mark.parametrize(
    ("source", "script", "is_alone", "is_changed"),
    [
        ("script", 5, True, False),
        ("script", 6, False, True),
        ("made", None, True, False),
        ("made", None, False, True),
        ("SLA_SEED", 5, True, True),
        ("contract", 5, True, True),
    ],
)
def test_generators_are_touched_only_where_somebody_asked(source, script, is_alone, is_changed):
    """
    A rank that has the seed already, and a single process that nobody gave one, keep every
    number that they would have drawn; others draw from the seed.
    """
    kept = take()
    try:
        changed = set_first(Choice(5, source), script=script, is_alone=is_alone)
        assert changed == is_changed
        assert (digests(take()) != digests(kept)) == is_changed
    finally:
        put_back(kept)


def test_what_a_script_that_seeds_torch_alone_leaves_open_is_seeded():
    """
    Of several ranks one whose script has seeded torch keeps what torch will draw, and gets
    numbers of Python and numpy that the next start has again.
    """
    kept = take()
    try:
        torch.manual_seed(5)
        drawn = []
        for unseeded in (101, 102):
            random.seed(unseeded)
            np.random.seed(unseeded)  # noqa: NPY002 - the global one is what scripts use
            before = digests(take())["torch"]
            assert not set_first(Choice(5, "script"), script=5, is_alone=False)
            assert digests(take())["torch"] == before
            drawn.append(digests(take()))
        assert drawn[0] == drawn[1]
    finally:
        put_back(kept)


def test_a_rank_with_a_seed_of_its_own_goes_on_where_rank_0_is():
    """
    What rank 0's script has drawn since it seeded counts for a rank whose script seeded otherwise,
    so that weights that both make next are equal.
    """
    kept = take()
    try:
        torch.manual_seed(5)
        torch.rand(3)
        choice = Choice(5, "script")
        place, made = place_of(choice), torch.rand(4)
        torch.manual_seed(6)
        assert set_first(choice, script=6, is_alone=False, place=place)
        assert torch.equal(torch.rand(4), made)
        assert place_of(Choice(5, "contract")) == []
    finally:
        put_back(kept)


def test_a_new_process_has_no_seed_of_its_script():
    """
    What torch begins with is no seed that somebody has set; what a script sets is.
    """
    text = (
        "import torch; from slav1.seeds import script_seed; print(script_seed());"
        "torch.manual_seed(7); print(script_seed())"
    )
    said = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)

    assert said.stdout.split() == ["None", "7"]
