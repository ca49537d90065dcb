"""NaN and infinity."""

import math
from typing import Any

import pytest
from _detector_tools import brief, watch

from slav1.breach import Status
from slav1.detectors import NonFinite
from slav1.sample import Sample


def sample(step: int, **values: Any) -> Sample:
    return Sample(rank=1, step=step, time_s=float(step), **({"loss": 2.0} | values))


def test_names_rank_step_batch_and_what_was_first():
    """
    A NaN loss gives one breach to act on that says where it came from.
    """
    bad = sample(7, loss=math.nan, batch=14, non_finite=("input", "loss", "gradient"))

    (breach,) = watch(NonFinite(), [sample(6), bad])

    assert (breach.rank, breach.step, breach.is_actionable) == (1, 7, True)
    assert breach.evidence["first"] == "input"
    assert breach.evidence["batch"] == 14
    assert "rank 1" in breach.message and "batch 14" in breach.message


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_needs_no_help_to_see_the_loss(loss):
    """
    A loss that is not finite is seen although nothing else was looked at.
    """
    (breach,) = watch(NonFinite(), [sample(0, loss=loss)])

    assert breach.evidence["first"] == "loss"


def test_an_incident_has_one_begin_and_one_end():
    """
    Ten bad steps are one breach; five finite ones in a row close it, four do not.
    """
    steps = [sample(i, loss=math.nan) for i in range(10)]
    steps += [sample(i) for i in range(10, 14)]
    steps += [sample(14, loss=math.nan)]
    steps += [sample(i) for i in range(15, 30)]

    assert brief(watch(NonFinite(), steps)) == [(0, "breach"), (19, "recovered")]


def test_an_infinite_gradient_alone_is_only_logged():
    """
    Mixed precision skips steps with infinite gradients: no action, until the loss follows.
    """
    steps = [sample(3, grad_norm=math.inf), sample(4, loss=math.nan, grad_norm=math.nan)]

    found = watch(NonFinite(), steps)

    assert [(b.step, b.is_actionable) for b in found] == [(3, False), (4, True)]


def test_broken_parameters_are_acted_on_whatever_the_loss():
    """
    Parameters that are not finite lose the step even where the loss still is.
    """
    (breach,) = watch(NonFinite(), [sample(0, non_finite=("parameters",))])

    assert breach.is_actionable


def test_unknown_values_close_nothing():
    """
    Steps without a loss and without a gradient norm say nothing about recovery.
    """
    steps = [sample(0, loss=math.nan), *(sample(i, loss=None) for i in range(1, 20))]

    assert brief(watch(NonFinite(), steps)) == [(0, "breach")]


def test_an_update_that_was_left_out_needs_no_way_back():
    """
    Where the update was left out the breach asks to skip the batches; on the rank whose loss
    was finite it is a notice.
    """
    (own,) = watch(NonFinite(), [sample(7, loss=math.nan, batch=7, is_update_left_out=True)])
    (other,) = watch(NonFinite(), [sample(7, is_update_left_out=True)])

    assert (own.action, own.is_actionable, own.evidence["num_left_out"]) == (
        *("skip_batches", True, 1),
    )
    assert "rank 1" in own.message and "batch 7" in own.message
    assert "the weights are as before" in own.message
    assert (other.status, other.evidence["first"]) == (Status.NOTICE, "gradient")


def test_a_gradient_scaler_leaves_the_update_of_a_bad_loss_out():
    """
    Under a scaler a loss that is not finite changes no weight, so its batches are skipped; what
    the scaler finds infinite beside a finite loss is silent, and neither goes on for ever.
    """
    bad = [sample(i, loss=math.nan, batch=i, is_scaled=True) for i in range(9)]
    broken = sample(0, loss=math.nan, non_finite=("parameters",), is_scaled=True)

    (alone,) = watch(NonFinite(), [bad[0], *(sample(i, is_scaled=True) for i in range(1, 5))])
    asked = [(b.step, b.action, b.is_actionable) for b in watch(NonFinite(), bad)]

    assert (alone.action, alone.is_actionable, alone.evidence["first"]) == (
        *("skip_batches", True, "loss"),
    )
    assert "the weights are as before" in alone.message
    assert asked == [(0, "skip_batches", True), (3, None, True)]
    assert [b.action for b in watch(NonFinite(), [broken])] == [None]
    assert watch(NonFinite(), [sample(i, is_scaled=True) for i in range(9)]) == []


def test_updates_are_not_left_out_for_ever():
    """
    One more update in a row than allowed asks for the rule's own action, whichever rank it is;
    so do broken parameters at once, and a finite step between starts the count anew.
    """
    left_out = [sample(i, grad_norm=math.nan, is_update_left_out=True) for i in range(9)]
    asked = [(b.step, b.action, b.is_actionable) for b in watch(NonFinite(), left_out)]
    between = [*left_out[:3], sample(3), *left_out[4:7]]
    broken = sample(0, non_finite=("parameters",), is_update_left_out=True)

    assert asked == [(0, None, False), (3, None, True)]
    assert brief(watch(NonFinite(), between)) == [(0, "notice")]
    assert [b.action for b in watch(NonFinite(), [broken])] == [None]
    assert [b.step for b in watch(NonFinite(max_left_out=0), left_out)] == [0]


def test_refuses_an_impossible_setting():
    """
    An incident must take at least one finite step to close.
    """
    with pytest.raises(ValueError, match="recovery_steps must be at least 1, got 0"):
        NonFinite(recovery_steps=0)
    with pytest.raises(ValueError, match="max_left_out must be 0 to 1000, got -1"):
        NonFinite(max_left_out=-1)
