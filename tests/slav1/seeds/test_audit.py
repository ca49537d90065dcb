"""What a comparison of all ranks finds, and what it leaves alone."""

from typing import Any

from slav1.seeds import Promise, judge, settings_here

SETTINGS = settings_here({})


def look(rank: int, **changes: Any) -> dict[str, Any]:
    """What a rank with nothing wrong brings."""
    usual = {
        "script_seed": 3,
        "generators": {name: f"{name} {rank}" for name in ("python", "numpy", "torch")},
        "settings": SETTINGS,
        "is_cuda": False,
        "samplers": [0],
        "weights": "same",
    }
    return usual | changes


def test_ranks_that_differ_only_where_they_must_are_quiet():
    """
    Equal weights, settings and sampler seeds with generators of each rank's own are neither
    wrong nor noted, whether seeds are set or only looked at.
    """
    for is_set in (False, True):
        judged = judge([look(0), look(1), look(2)], Promise(is_set=is_set), "start")
        assert (judged.wrong, judged.noted, judged.at_fault) == ((), (), ())


def test_the_minority_is_named_and_of_two_only_at_the_start():
    """
    Of three ranks the one that differs is at fault; of two that differ it is the one that was
    to get the other's weights, and after a rollback neither, with the parameter in all cases.
    """
    odd = {"weights": "other", "tensors": {"a": "1", "b": "3"}}
    others = {"tensors": {"a": "1", "b": "2"}}

    of_three = judge([look(0, **odd), look(1, **others), look(2, **others)], Promise(), "rollback")
    of_two = [look(0, **others), look(1, **odd)]

    assert of_three.at_fault == (0,)
    assert judge(of_two, Promise(), "start").at_fault == (1,)
    assert judge(of_two, Promise(), "rollback").at_fault == ()
    for judged in (of_three, judge(of_two, Promise(), "rollback")):
        assert len(judged.wrong) == 1 and "first in parameter b" in judged.wrong[0]


def test_settings_and_samplers_that_differ_name_their_ranks():
    """
    A setting that decides over bits and the seed of a sampler that shares data out must be
    equal; each difference names setting, values and ranks.
    """
    changed = {**SETTINGS, "cudnn.benchmark": "True"}

    judged = judge(
        [look(0), look(1), look(2, settings=changed), look(3, samplers=[9])], Promise(), "start"
    )

    assert judged.at_fault == (3,)
    assert "distributed samplers of rank 3" in judged.wrong[0]
    assert judged.wrong[1] == "cudnn.benchmark is True on rank 2 and False on the others."


def test_identical_generators_are_noted_and_wrong_only_where_seeds_are_set():
    """
    Generators that draw the same on several ranks are named with the ranks; it breaks the
    contract only if the contract has set the seeds, and never within a group.
    """
    twins = {"generators": {"torch": "x", "numpy": "y"}}
    looks = [look(0, **twins), look(1, **twins), look(2)]

    noted = judge(looks, Promise(), "start")
    wrong = judge(looks, Promise(is_set=True), "start")
    grouped = judge(looks, Promise(is_set=True, groups=[[0, 1]]), "start")

    assert noted.wrong == () and "ranks 0, 1: numpy, torch." in noted.noted[0]
    assert "ranks 0, 1: numpy, torch." in wrong.wrong[0] and wrong.noted == ()
    assert (grouped.wrong, grouped.noted) == ((), ())


def test_ranks_of_one_group_that_draw_other_numbers_are_named():
    """
    Within a group the numbers of torch must be equal: where the contract sets seeds it is broken
    if they are not, else it is noted; what Python and numpy draw is each rank's own affair.
    """
    looks = [look(rank, generators={"torch": f"x{rank}", "numpy": f"y{rank}"}) for rank in range(4)]
    alike = [look(rank, generators={"torch": f"x{rank // 2}"}) for rank in range(4)]
    groups = [[0, 1], [2, 3]]

    wrong = judge(looks, Promise(is_set=True, groups=groups), "resume")
    noted = judge(looks, Promise(groups=groups), "start")

    assert "of ranks 2, 3, which are one group, differ: torch." in wrong.wrong[1]
    assert (len(wrong.wrong), wrong.noted, wrong.at_fault) == (2, (), ())
    assert noted.wrong == () and "of ranks 0, 1, which are one group" in noted.noted[0]
    assert judge(alike, Promise(is_set=True, groups=groups), "start").wrong == ()


def test_determinism_that_is_owed_lists_what_is_lacking():
    """
    With ``deterministic`` each missing setting is wrong, with the ranks it is missing on; those
    of CUDA are asked for on GPUs only.
    """
    good = {**SETTINGS, "use_deterministic_algorithms": "True", "warn_only": "False"}
    owed = Promise(deterministic=True)

    assert judge([look(0, settings=good)] * 2, owed, "start").wrong == ()
    bare = judge([look(0), look(1)], owed, "start")
    on_gpu = judge([look(0, settings=good, is_cuda=True)] * 2, owed, "start")

    assert len(bare.wrong) == 1 and "use_deterministic_algorithms" in bare.wrong[0]
    assert "ranks 0, 1" in bare.wrong[0] and bare.at_fault == ()
    assert [name for name in ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO") if name in str(on_gpu.wrong)]
    assert len(on_gpu.wrong) == 2


def test_seeds_that_differ_are_no_fault():
    """
    A seed for each rank, and no seed at all, are only noted.
    """
    apart = judge([look(0), look(1, script_seed=4)], Promise(), "start")
    unseeded = judge([look(0, script_seed=None), look(1, script_seed=None)], Promise(), "start")

    assert apart.wrong == unseeded.wrong == ()
    assert apart.noted == ("The script gives each rank a seed of its own.",)
    assert "Nobody has seeded" in unseeded.noted[0]
