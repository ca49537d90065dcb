"""Audits of seeds: what is a breach, what a notice, and what is remembered."""

from slav1.breach import Status
from slav1.detectors import SeedContract
from slav1.detectors._audits import audit_in
from slav1.sample import Audit, Stream

from _detector_tools import watch  # isort: skip


def audit(*streams, moment="workers", **changes):
    usual = {"step": 3, "time_s": 1.0, "moment": moment, "streams": streams}
    return Audit(**usual | changes)


def stream(digest, *, rank=0, worker=0, epoch=0, generator="numpy"):
    return Stream(generator, digest, rank, 0, worker, epoch)


def test_numbers_that_come_twice_are_named_wherever_they_come():
    """
    The same state across workers, ranks and epochs is named with generator and both places; it
    is a notice where nobody set seeds, and a breach where the contract did.
    """
    events = [
        audit(stream("a"), stream("b", worker=1), stream("a", worker=2, generator="torch")),
        audit(stream("b", rank=1)),
        audit(stream("c", epoch=1), stream("a", worker=1, epoch=1)),
    ]

    noticed = watch(SeedContract(), events)
    owed = watch(SeedContract(), [audit(*e.streams, is_owed=True) for e in events])

    assert [f.status for f in noticed] == [Status.NOTICE] * 2
    assert [f.status for f in owed] == [Status.BREACH] * 2
    said = [f.message for f in noticed]
    begins = (
        "The numpy generator of worker {} on rank {} in epoch {} begins as that of worker {} on"
    )
    assert said[0].startswith(begins.format(0, 1, 0, 1)) and said[0].endswith("rank 0 in epoch 0.")
    assert said[1].startswith(begins.format(1, 0, 1, 0)) and said[1].endswith("rank 0 in epoch 0.")


def test_the_same_worker_started_again_is_no_second_one():
    """
    A resumed epoch starts its workers with the numbers they had; that is no repetition.
    """
    events = [audit(stream("a"), stream("b", worker=1)), audit(stream("a"), stream("b", worker=1))]

    assert watch(SeedContract(), events) == []


def test_what_ranks_found_wrong_is_a_breach_until_it_is_right_again():
    """
    A comparison with something wrong names the rank if it is one, opens an incident, and a
    later one without ends it; what workers say ends nothing.
    """
    wrong = audit(moment="start", wrong=("Weights differ.",), at_fault=(2,))
    right = audit(moment="rollback")

    found = watch(SeedContract(), [right, wrong, audit(stream("a")), right, right])

    assert [(f.status, f.rank) for f in found] == [(Status.BREACH, 2), (Status.RECOVERED, 2)]


def test_a_step_that_does_not_repeat_itself_is_told_once():
    """
    What several ranks find of the same step is one breach without a rank, that a clean
    comparison does not end; one that repeats is none.
    """
    wrong = [audit(moment="probe", wrong=(f"Rank {n}.",), at_fault=(n,)) for n in (0, 1)]

    assert watch(SeedContract(), [audit(moment="probe")]) == []
    found = watch(SeedContract(), [*wrong, audit(moment="rollback")])
    assert [(f.status, f.rank, f.message) for f in found] == [(Status.BREACH, None, "Rank 0.")]


def test_a_line_of_a_ledger_becomes_the_audit_it_tells_of():
    """
    Lines of the rule with an audit are read, also where values have other types than expected;
    other lines are none.
    """
    workers = [
        {"loader": 0, "worker": 1, "epoch": 2, "digests": {"numpy": "a"}},
        {"loader": 0, "worker": "x", "epoch": 2, "digests": {"numpy": "a"}},
        "nonsense",
    ]
    told = {"audit": "workers", "is_set": True, "owner": 4, "workers": workers, "wrong": "no list"}

    read = audit_in("seed_contract", 7, told, time_s=2.0)

    assert read == Audit(
        step=7,
        time_s=2.0,
        moment="workers",
        streams=(Stream("numpy", "a", 4, 0, 1, 2),),
        is_owed=True,
    )
    assert audit_in("hang", 7, told, time_s=2.0) is None
    assert audit_in("seed_contract", 7, {}, time_s=2.0) is None
