"""Copies of tensors that are not equal any more: who is suspect, and what is done."""

from typing import Any

from _detector_tools import watch

from slav1.breach import Breach, Status
from slav1.detectors import ReplicaDivergenceLiteral
from slav1.detectors._reruns import rerun_in
from slav1.sample import Difference, Replicas, Rerun


def looked(
    step: int,
    *camps: tuple[int, ...],
    name: str = "encoder.weight",
    kind: str = "parameter",
    num_ranks: int = 3,
    is_first: bool = False,
    is_certain: bool = True,
    slot: int = 0,
    is_trained: bool = True,
) -> Replicas:
    """A look at copies: equal on all ranks, or one tensor that differs between camps."""
    differing = (Difference(parameter=name, kind=kind, slot=slot, camps=camps),) if camps else ()
    return Replicas(
        step=step,
        part="all",
        slots=(0, 1) if is_first else (slot,),
        ranks=tuple(range(num_ranks)),
        num_tensors=6,
        num_differing=len(differing),
        differing=differing,
        is_first=is_first,
        is_certain=is_certain,
        is_trained=is_trained,
    )


def found(*events: Replicas | Rerun) -> list[Breach]:
    """What the rule finds in a run."""
    return watch(ReplicaDivergenceLiteral(), events)


def test_the_minority_of_three_is_suspect() -> None:
    """
    Of three copies the one that differs is named, with its parameter and the first step at
    which it can have changed, and the batches since then count as good.
    """
    (breach,) = found(looked(0, is_first=True), looked(50), looked(100, (0, 2), (1,)))

    assert (breach.rank, breach.step, breach.is_actionable) == (1, 100, True)
    assert breach.evidence["parameter"] == "encoder.weight"
    assert breach.evidence["first_step"] == 51
    assert breach.evidence["are_batches_good"] is True
    assert breach.message == (
        "Rank 1 holds other bits of encoder.weight than the other 2 ranks, since a step from 51 "
        "to 100."
    )


def test_two_copies_that_differ_are_both_suspect() -> None:
    """
    Of two copies neither is right for being rank 0's; it is acted on all the same, because
    going back makes both equal.
    """
    start = looked(0, is_first=True, num_ranks=2), looked(50, num_ranks=2)
    (breach,) = found(*start, looked(100, (0,), (1,), num_ranks=2, kind="exp_avg"))

    assert (breach.rank, breach.is_actionable) == (None, True)
    assert breach.evidence["suspects"] == [0, 1]
    assert breach.evidence["tensor"] == "exp_avg"
    assert "Ranks 0, 1 hold different bits of exp_avg of encoder.weight" in breach.message


def test_no_majority_names_everyone() -> None:
    """
    Two against two, or each for itself: all that hold the tensor are suspect.
    """
    start = looked(0, is_first=True, num_ranks=4), looked(50, num_ranks=4)
    (tie,) = found(*start, looked(100, (0, 3), (1, 2), num_ranks=4))
    (all_apart,) = found(*start[:2], looked(100, (0,), (1,), (2,), (3,), num_ranks=4))

    assert tie.evidence["suspects"] == [0, 1, 2, 3]
    assert all_apart.evidence["suspects"] == [0, 1, 2, 3]


def test_what_was_never_equal_stops_nothing() -> None:
    """
    Copies that differ from the first look on give one notice, and nothing between these
    ranks is acted on any more, not even another tensor that was equal before.
    """
    notice, later = found(
        looked(0, (0,), (1, 2), is_first=True),
        looked(50, (0,), (1, 2)),
        looked(75, slot=1),
        looked(125, slot=1),
        looked(175, (0, 1), (2,), slot=1, name="other"),
    )

    assert notice.status is Status.NOTICE
    assert "from the first look on" in notice.message
    assert (later.evidence["parameter"], later.is_actionable) == ("other", False)


def test_one_equal_look_is_not_enough_to_act() -> None:
    """
    A difference right after the first look is told and not acted on.
    """
    (breach,) = found(looked(0, is_first=True), looked(50, (0, 2), (1,)))

    assert (breach.status, breach.is_actionable) == (Status.BREACH, False)


def test_copies_that_may_differ_in_health_are_not_acted_on() -> None:
    """
    Where something is known by which healthy copies come to differ, nothing is done.
    """
    start = looked(0, is_first=True), looked(50), looked(100)
    (breach,) = found(*start, looked(150, (0, 2), (1,), is_certain=False))

    assert breach.is_actionable is False


def test_told_ever_more_rarely_until_it_is_over() -> None:
    """
    A difference that stays is told at the first look, the second, the fourth and so on, and
    once that it is over.
    """
    steps = range(150, 600, 50)
    bad = [looked(step, (0, 2), (1,)) for step in steps]
    told = found(looked(0, is_first=True), looked(50), looked(100), *bad, looked(600))

    assert [one.step for one in told] == [150, 200, 300, 500, 600]
    assert told[-1].status is Status.RECOVERED
    assert {one.rank for one in told} == {1}


def test_a_new_start_knows_nothing_of_the_one_before() -> None:
    """
    What was equal before a restart does not make a difference after it worth acting on: the
    machines may be others.
    """
    found_again = found(
        *(looked(step, is_first=step == 0) for step in (0, 50, 100)),
        looked(101, (0, 2), (1,), is_first=True),
        looked(150, (0, 2), (1,)),
    )

    assert [one.status for one in found_again] == [Status.NOTICE]


def test_what_no_optimizer_updates_is_told_once_and_never_acted_on() -> None:
    """
    A parameter that the training itself may have changed, as an average of weights that rank 0
    alone begins to keep, is one notice, however often it was equal before.
    """
    start = [looked(50 * n, is_first=n == 0, is_trained=False) for n in range(5)]
    apart = [looked(50 * n, (1, 2), (0,), name="ema.weight", is_trained=False) for n in (5, 6, 7)]
    (notice,) = found(*start, *apart, looked(400, is_trained=False))

    assert (notice.status, notice.is_actionable) == (Status.NOTICE, False)
    assert "Rank 0 holds other bits of ema.weight" in notice.message
    assert "No optimizer updates them" in notice.message


def rerun(step: int, *names: str, wrong: str = "first", **changes: Any) -> Rerun:
    """A micro-batch that rank 2 has run twice; of which these differ."""
    usual: dict[str, Any] = {"num_differing": len(names), "differing": names, "num_equal": 9}
    told = {"micro_batch": 1, "num_compared": 7, "wrong": wrong if names else ""} | usual | changes
    return Rerun(rank=2, step=step, **told)


def test_a_micro_batch_that_comes_out_otherwise_is_told_and_acted_on() -> None:
    """
    The rank, the step and the first parameter are named, and training goes back to before the
    step; of more in a row the second, fourth and so on are told, and the next that repeats.
    """
    bad = rerun(12, "output of net", "net.0.weight")

    breach, *more, recovered = found(rerun(3), bad, bad, bad, bad, rerun(20))

    assert (breach.rank, breach.step, breach.is_actionable) == (2, 12, True)
    assert breach.evidence["parameter"] == "net.0.weight"
    assert breach.evidence["first_step"] == 12
    assert breach.message == (
        "Rank 2 ran micro-batch 1 of step 12 again and computed output of net and 1 more tensor "
        "otherwise. The first run was wrong, by a third: all ranks have trained with its gradient. "
        "Suspect its processor or memory."
    )
    assert len(more) == 2
    assert recovered.status is Status.RECOVERED


def test_a_micro_batch_is_acted_on_only_if_it_is_known_to_be_wrong() -> None:
    """
    Where the second run was wrong, nobody knows which, bits do not repeat, or none has
    repeated before, a difference is told and nothing is done.
    """
    doubtful = [
        {"wrong": "second"},
        {"wrong": "unclear"},
        {"is_exact": False},
        {"num_equal": 1},
    ]
    breaches = [one for changes in doubtful for one in found(rerun(5, "net.0.weight", **changes))]

    assert [one.is_actionable for one in breaches] == [False] * 4
    assert {one.status for one in breaches} == {Status.BREACH}


def test_a_line_of_a_ledger_becomes_the_second_run_it_tells_of() -> None:
    """
    Lines of the rule about a micro-batch are read, also where values have other types than
    expected; other lines are none.
    """
    told = {
        "micro_batch": 1,
        "num_compared": 7,
        "num_differing": 1,
        "differing": ["net.0.weight"],
        "wrong": "first",
        "is_exact": True,
        "num_equal": 9,
    }
    nonsense = {"micro_batch": "x", "differing": 3, "num_equal": None}
    rule = "replica_divergence"

    assert rerun_in(rule, 2, 5, {"replay": told}) == rerun(5, "net.0.weight")
    assert rerun_in(rule, 2, 5, {"replay": nonsense}) is not None
    assert rerun_in("hang", 2, 5, {"replay": told}) is None
    assert rerun_in(rule, 2, 5, {}) is rerun_in(rule, None, 5, {"replay": told}) is None
