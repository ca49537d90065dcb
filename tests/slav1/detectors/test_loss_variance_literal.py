"""The contract's literal rule on the variance of the loss."""

from itertools import islice
from statistics import pvariance

import pytest
from _detector_tools import brief, losses, noise, round_of, watch, watch_from

from slav1.detectors import LossVarianceLiteral
from slav1.detectors.loss_variance_literal import Moments


def steady(num: int, seed: int = 50) -> list[float]:
    return [2.0 + 0.03 * value for value in islice(noise("gaussian", seed), num)]


def test_finds_an_enormous_spike():
    """
    A loss 50 sigmas up is a breach; it ends before the spike has left the window, because
    the odd variances go into the history they are compared with.
    """
    series = steady(600)
    series[400] += 50 * 0.03

    begin, end = brief(watch(LossVarianceLiteral(), losses(series)))

    assert begin == (400, "breach")
    assert end[1] == "recovered" and end[0] < 400 + 128


def test_misses_what_the_sequential_rule_finds():
    """
    A spike of 5 sigmas and a level 4 sigmas up for good stay under the limit.
    """
    spike, level = steady(600), steady(600)
    spike[400] += 5 * 0.03
    level[400:] = [x + 4 * 0.03 for x in level[400:]]

    assert watch(LossVarianceLiteral(), losses(spike)) == []
    assert watch(LossVarianceLiteral(), losses(level)) == []


def test_is_masked_by_its_own_history():
    """
    The fall at the start of a training lies in the baseline: the same 20-sigma spike is
    found without it and missed with it.
    """
    calm, fallen = steady(700), steady(700)
    calm[600] += 20 * 0.03
    fallen[600] += 20 * 0.03
    fallen[:200] = [x + 6.0 * (1 - i / 200) for i, x in enumerate(fallen[:200])]

    assert brief(watch(LossVarianceLiteral(), losses(calm)))[0] == (600, "breach")
    assert watch(LossVarianceLiteral(), losses(fallen)) == []


def test_is_silent_until_there_is_a_history():
    """
    A spike before there are as many variances as losses in the window is not judged.
    """
    series = steady(254)
    series[250] += 100.0

    assert watch(LossVarianceLiteral(), losses(series)) == []


def test_variance_and_history_are_exact():
    """
    Window and history hold what a full computation gives, also for a loss that is huge
    beside its noise.
    """
    series = [1e6 + x for x in steady(60)]
    state, _ = watch_from(
        LossVarianceLiteral(window=8), LossVarianceLiteral().start(), losses(series)
    )
    variances = [pvariance(series[i - 8 : i]) for i in range(8, 61)]

    assert state.recent == tuple(series[-8:])
    assert state.variances.num_seen == len(variances)
    assert state.variances.mean == pytest.approx(sum(variances) / len(variances), rel=1e-6)
    assert state.variances.deviation == pytest.approx(pvariance(variances) ** 0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("others", "action"),
    [
        ({"grad_norm": 0.9}, "snapshot"),
        ({"grad_norm": 0.7, "zero_share": 0.6}, "clip_and_decay"),
        ({"grad_norm": 0.7, "zero_share": 0.3}, None),
    ],
)
def test_the_gradient_decides_what_is_done(others, action):
    """
    A breach with a norm at four times its mean asks for a snapshot, one with a gradient that
    is 40 % thinner for clip_and_decay, and any other for the rule's own action.
    """
    usual = {"grad_norm": 0.2, "zero_share": 0.2}
    rounds = [round_of(i, loss, **usual) for i, loss in enumerate(steady(600))]
    rounds[400] = round_of(400, 12.0, **(usual | others))

    begin, _ = watch(LossVarianceLiteral(), rounds)

    assert (begin.step, begin.action) == (400, action)


def test_moments_of_nothing():
    """
    Before the first value the deviation is 0.
    """
    assert Moments().deviation == 0.0


def test_refuses_impossible_settings():
    """
    The text names the setting and the value.
    """
    with pytest.raises(ValueError, match="window must be from 2 to 4096 steps, got 1"):
        LossVarianceLiteral(window=1)
    with pytest.raises(ValueError, match="limit_sigmas must be above 0, got 0"):
        LossVarianceLiteral(limit_sigmas=0)
