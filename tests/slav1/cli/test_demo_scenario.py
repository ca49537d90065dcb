"""The faults of the demo: what may be asked for, and what is planned for it."""

import math
import random

import pytest

from slav1.breach import Status
from slav1.cli._demo_scenario import FAULTS, MAX_RANKS, scenario, usual_steps
from slav1.detectors import StragglerSequential
from slav1.sample import Round, Sample
from slav1.testing import Fault

WITH_FAULT = [fault for fault in FAULTS if fault != "none"]


@pytest.mark.parametrize("fault", WITH_FAULT)
@pytest.mark.parametrize("num_ranks", [2, MAX_RANKS])
def test_every_fault_is_one_that_can_be_injected(fault, num_ranks):
    """
    What is put into SLA_INJECT reads as a fault on the rank and step that are announced.
    """
    planned = scenario(fault, num_ranks=num_ranks, num_steps=usual_steps(fault))

    injected = Fault.parse(planned.inject)

    assert (injected.rank, injected.step) == (planned.rank, planned.step)
    assert f"rank {planned.rank}" in planned.injected
    assert f"tep {planned.step}" in planned.injected


@pytest.mark.parametrize("fault", sorted(set(WITH_FAULT) - {"straggler", "seed"}))
def test_a_single_rank_is_hit_itself(fault):
    """
    With one process, the fault is planned for the only rank there is.
    """
    assert scenario(fault, num_ranks=1, num_steps=usual_steps(fault)).rank == 0


@pytest.mark.slow
def test_the_straggler_stands_out_on_a_busy_machine():
    """
    Where others want the same cores, so that the times of both ranks jump about, the rank that
    is slowed down is found before the run is over in nine of ten runs, and hardly ever the other.
    """
    planned = scenario("straggler", num_ranks=2, num_steps=usual_steps("straggler"))
    found = [first_straggler(planned, random.Random(seed)) for seed in range(100)]

    assert found.count(planned.rank) >= 90
    assert found.count(0) <= 2


def first_straggler(planned, rng):
    """The rank that is named first after the fault; None if none is."""
    detector = StragglerSequential()
    state, levels, factor = detector.start(), [0.0, 0.0], Fault.parse(planned.inject).factor
    for step in range(usual_steps("straggler")):
        samples = []
        for rank in (0, 1):
            if rng.random() < 0.2:
                levels[rank] = rng.gauss(0.0, 1.0)
            noise = math.exp(levels[rank] + rng.gauss(0.0, 0.5))
            is_hit = rank == planned.rank and step >= planned.step
            times = {
                "data_s": 0.002 * noise,
                # As the fault does it: a pause of so many usual times.
                "forward_s": 0.010 * noise + (0.010 * (factor - 1) if is_hit else 0.0),
                "backward_s": 0.020 * noise,
                "optimizer_s": 0.006 * noise,
            }
            samples.append(Sample(rank=rank, step=step, time_s=0.0, sync_s=0.01, **times))
        state, breach = detector.observe(state, Round(step=step, samples=tuple(samples)))
        if breach is not None and breach.status is Status.BREACH and step >= planned.step:
            return breach.rank
    return None


def test_a_run_is_as_long_as_its_fault_needs():
    """
    400 steps are usual; a leak takes more to be found with certainty.
    """
    assert (usual_steps("spike"), usual_steps("none"), usual_steps("leak")) == (400, 400, 700)


def test_none_injects_and_expects_nothing():
    """
    Without a fault nothing is injected, no rule must find anything and the run finishes.
    """
    planned = scenario("none", num_ranks=1, num_steps=1)

    assert (planned.inject, planned.rule, planned.ending) == (None, None, "finished")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fault": "flood"}, "--fault flood must be one of spike, none, nan"),
        ({"num_ranks": 0}, "--ranks 0 must be 1 to 8"),
        ({"num_ranks": 9}, "--ranks 9 must be 1 to 8"),
        ({"num_steps": 249}, "--steps 249 is too few for --fault spike"),
        ({"fault": "none", "num_steps": 0}, "--steps 0 must be at least 1"),
        ({"fault": "straggler", "num_ranks": 1}, "--fault straggler needs --ranks 2 or more"),
        ({"fault": "seed", "num_ranks": 1}, "--fault seed needs --ranks 2 or more"),
    ],
)
def test_what_is_not_possible_is_refused_in_one_line(changes, said):
    """
    Impossible options are refused with the option, what came and what is needed.
    """
    asked = {"fault": "spike", "num_ranks": 2, "num_steps": 400} | changes

    with pytest.raises(ValueError, match=said) as refused:
        scenario(asked["fault"], num_ranks=asked["num_ranks"], num_steps=asked["num_steps"])

    assert "\n" not in str(refused.value)
