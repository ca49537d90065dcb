"""The service-level figures: right, exact, bounded, and at home in a user's own code."""

import io
import math
import pickle
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import Metric, MetricCollection

from slav1.metrics import (
    Availability,
    CheckpointSuccess,
    LossVariance,
    MemorySlope,
    SyncLatency,
    UsefulTimeRatio,
)
from slav1.phase import Phase
from slav1.sample import Pulse, Sample, Save

EVERY_METRIC = (
    Availability,
    CheckpointSuccess,
    LossVariance,
    MemorySlope,
    SyncLatency,
    UsefulTimeRatio,
)


def arguments(kind: type[Metric], number: int) -> tuple[Any, ...]:
    """What update number ``number`` tells a metric of this kind."""
    rng = random.Random(number)
    if kind in (Availability, CheckpointSuccess):
        return (rng.random() < 0.9,)
    if kind is UsefulTimeRatio:
        return (rng.random(), 1.0)
    if kind is MemorySlope:
        return (1e5 + 0.25 * number + rng.gauss(0.0, 1.0), number)
    return (abs(rng.gauss(0.02, 0.01)),)


def fed(kind: type[Metric], start: int, stop: int, **settings: Any) -> Any:
    metric = kind(**settings)
    for number in range(start, stop):
        metric.update(*arguments(kind, number))
    return metric


def around(state: dict[str, Any]) -> dict[str, Any]:
    """A state as it comes back out of a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def pulse(state: str) -> Pulse:
    return Pulse(
        rank=0,
        time_s=0.0,
        is_alive=True,
        process_state=state,
        step=0,
        phase=Phase.FORWARD,
        since_progress_s=0.0,
        num_steps=0,
    )


def sample(**values: Any) -> Sample:
    return Sample(rank=0, time_s=0.0, **values)


@pytest.mark.parametrize("kind", EVERY_METRIC)
def test_no_data_is_nan(kind: type[Metric]) -> None:
    """
    Without data every figure is NaN, not 0 and not perfect.
    """
    assert math.isnan(kind().compute().item())
    assert math.isnan(kind().to("cpu").compute().item())


@pytest.mark.parametrize("bound", ["lower", "upper"])
def test_no_data_bounds_nothing(bound: Any) -> None:
    """
    Without data a bound is NaN as well.
    """
    assert math.isnan(CheckpointSuccess(bound=bound).compute().item())


def test_rates_and_their_bounds() -> None:
    """
    A rate is the share of good tries, and its bounds are those of Clopper and Pearson: 1,000
    good saves show 99.7 %.
    """
    settings: tuple[dict[str, Any], ...] = ({}, {"bound": "lower"}, {"bound": "upper"})
    rate, lower, upper = (CheckpointSuccess(**each) for each in settings)
    for metric in (rate, lower, upper):
        metric.update(998, 998)
        metric.update(Save(step=1, time_s=0.0, succeeded=True))
        metric.update(False)

    assert rate.compute().item() == pytest.approx(0.999)
    # 4.744 failures are the 95 % bound of a Poisson count of 1, and 0.051 the other one.
    assert lower.compute().item() == pytest.approx(1 - 4.744 / 1000, abs=2e-5)
    assert upper.compute().item() == pytest.approx(1 - 0.0513 / 1000, abs=2e-6)


def test_beats_are_those_of_the_contract() -> None:
    """
    A pulse counts as in time if its process could answer; more good beats than beats are
    refused, and so is a share in place of a count.
    """
    available = Availability()
    for state in "RSDT":
        available.update(pulse(state))

    assert available.compute().item() == 0.75
    with pytest.raises(ValueError, match="got 3"):
        available.update(3, 2)
    with pytest.raises(ValueError, match=r"got 0\.999: .* no share"):
        available.update(0.999)


@pytest.mark.parametrize("quantile", [0.0, 0.01, 0.5, 0.9, 0.99, 1.0])
def test_latency_is_within_its_error(quantile: float) -> None:
    """
    Each quantile is within 1 % of the true one, over nine decades.
    """
    rng = random.Random(7)
    times_s = sorted(10.0 ** rng.uniform(-5.5, 3.5) for _ in range(5_000))
    latency = SyncLatency(quantile=quantile)
    latency.update(times_s)
    truth = times_s[max(0, math.ceil(quantile * len(times_s)) - 1)]

    assert latency.compute().item() == pytest.approx(truth, rel=0.01)


def test_latency_takes_what_there_is() -> None:
    """
    Numbers, tensors, lists and samples count alike; what was not measured is left out, and
    what is out of range counts as 0 or as the longest time.
    """
    latency = SyncLatency(quantile=0.5)
    latency.update(0.5)
    latency.update(torch.tensor([0.5, math.nan]))
    latency.update([0.5])
    latency.update(sample(step=1))
    latency.update(sample(step=1, sync_s=0.5))
    latency.update([])

    assert latency.counts[:-1].sum().item() == 4
    assert latency.compute().item() == pytest.approx(0.5, rel=0.01)
    latency.update([0.0] * 9)
    assert latency.compute().item() == 0.0
    latency.update([math.inf] * 99)
    assert latency.compute().item() == pytest.approx(1e4, rel=0.01)


def test_loss_variance_sees_through_trend_and_spikes() -> None:
    """
    The variance of noise around a falling loss is found within a few percent, also with a
    spike in every hundred steps, where the plain variance is off by far.
    """
    rng = random.Random(3)
    losses = [2.0 + 6.0 / math.sqrt(1 + i / 200) + rng.gauss(0.0, 0.03) for i in range(10_000)]
    losses[50::100] = [9.0] * 100
    variance = LossVariance()
    variance.update(losses)

    assert variance.compute().item() == pytest.approx(0.03**2, rel=0.08)
    assert statistics.pvariance(losses) > 100 * 0.03**2


def test_loss_that_is_not_finite_is_left_out() -> None:
    """
    NaN, infinity and a missing loss drop out with the differences to their neighbours.
    """
    variance = LossVariance()
    for loss in (1.0, 2.0, math.nan, 100.0, math.inf, 1e6, 1e6 + 1.0):
        variance.update(loss)
    variance.update(sample(step=7))
    variance.update(sample(step=8, loss=0.0))

    assert variance.counts[:-1].sum().item() == 2
    assert variance.compute().item() == pytest.approx(1 / (2 * 0.67449**2), rel=0.02)


def test_slope_of_a_long_run_is_exact() -> None:
    """
    The slope is that of least squares, without cancellation where steps and memory are large,
    however the readings were cut; readings that are not finite are left out.
    """
    steps = [10**9 + i for i in range(2_000)]
    memory_mib = [1e8 + 0.125 * i + (0.5 if i % 2 else -0.5) for i in range(2_000)]
    truth = statistics.linear_regression(range(2_000), [m - 1e8 for m in memory_mib]).slope
    singly, at_once = MemorySlope(), MemorySlope()
    for step, value in zip(steps[:1_000], memory_mib[:1_000], strict=True):
        singly.update(sample(step=step, allocated_mib=value))
    singly.update(math.nan, 5)
    singly.update(sample(step=7))
    singly.update(memory_mib[1_000:], steps[1_000:])
    at_once.update(torch.tensor(memory_mib, dtype=torch.float64))

    assert singly.compute().item() == pytest.approx(truth, rel=1e-9)
    assert at_once.compute().item() == pytest.approx(truth, rel=1e-9)


def test_slope_needs_two_steps() -> None:
    """
    One step, however often, has no slope.
    """
    slope = MemorySlope()
    slope.update([1.0, 2.0], [3, 3])

    assert math.isnan(slope.compute().item())


def test_useful_time_is_a_ratio_of_sums() -> None:
    """
    Stretches of time count by their length, and useful time can't exceed time.
    """
    useful = UsefulTimeRatio()
    useful.update(10.0, 10.0)
    useful.update(0.0, 30.0)

    assert useful.compute().item() == 0.25
    with pytest.raises(ValueError, match="same stretch"):
        useful.update(2.0, 1.0)


@pytest.mark.parametrize("kind", EVERY_METRIC)
def test_parts_merge_to_the_whole(kind: type[Metric]) -> None:
    """
    Two metrics merged equal one that saw everything; for the loss, but for the one difference
    between the parts.
    """
    first, second, whole = fed(kind, 0, 300), fed(kind, 300, 500), fed(kind, 0, 500)

    first.merge_state(second)

    rel = 0.03 if kind is LossVariance else 1e-9
    assert first.compute().item() == pytest.approx(whole.compute().item(), rel=rel)


@pytest.mark.parametrize("kind", EVERY_METRIC)
def test_a_call_returns_the_figure_so_far(kind: type[Metric]) -> None:
    """
    Calling a metric updates it like ``update`` and returns the figure of all calls.
    """
    called, updated = kind(), kind()
    for number in range(20):
        figure = called(*arguments(kind, number))
        updated.update(*arguments(kind, number))

    assert figure.item() == updated.compute().item() == called.compute().item()


@pytest.mark.parametrize("kind", EVERY_METRIC)
def test_checkpoint_goes_on_as_if_unbroken(kind: type[Metric]) -> None:
    """
    A module that is saved, loaded by another process and fed on gives the figure of an unbroken
    one, bit by bit; what was computed before the load is forgotten.
    """
    before, after = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    before.figure = fed(kind, 0, 50)
    after.figure = fed(kind, 900, 910)
    after.figure.compute()

    state = around(before.state_dict())

    missing = after.load_state_dict(state)

    assert after.figure.compute().item() == before.figure.compute().item()
    for number in range(50, 80):
        after.figure.update(*arguments(kind, number))
    assert missing == ([], [])
    assert after.figure.compute().item() == fed(kind, 0, 80).compute().item()
    # What was loaded is a copy: what was read from the file stays as it was.
    assert all(state[name].equal(value) for name, value in before.state_dict().items())


def test_checkpoint_of_other_settings_is_refused() -> None:
    """
    Counts of buckets of another width are no counts of ours: loading them is an error that
    names the metric.
    """
    with pytest.raises(RuntimeError, match="SyncLatency was made with other settings"):
        SyncLatency().load_state_dict(SyncLatency(relative_error=0.05).state_dict())


def test_checkpoint_without_the_metric_loads() -> None:
    """
    A checkpoint from before the metric was added loads, and the metric goes on as it was.
    """
    model = torch.nn.Linear(2, 2)
    state = model.state_dict()
    model.figure = fed(Availability, 0, 10)

    model.load_state_dict(state)

    assert model.figure.compute().item() == fed(Availability, 0, 10).compute().item()


@pytest.mark.parametrize("kind", EVERY_METRIC)
def test_state_is_bounded_and_in_64_bits(kind: type[Metric]) -> None:
    """
    The state never grows, and stays in 64 bits on the CPU, whatever the module is cast to, on
    ``meta`` as well as off it.
    """
    model = torch.nn.Linear(2, 2)
    with torch.device("meta"):
        model.figure = kind()
    for cast in (torch.nn.Module.half, torch.nn.Module.bfloat16, torch.nn.Module.float):
        cast(model)
    model.to(torch.bfloat16)
    num_bytes = [sum(state.nbytes for state in model.figure.metric_state.values())]
    for number in range(200):
        model.figure(*arguments(kind, number))
    num_bytes += [sum(state.nbytes for state in model.figure.metric_state.values())]

    assert num_bytes[0] == num_bytes[1]
    assert {state.dtype for state in model.figure.metric_state.values()} <= {
        torch.float64,
        torch.int64,
    }
    assert model.figure.device.type == "cpu"
    assert model.figure.compute().item() == fed(kind, 0, 200).compute().item()


@pytest.mark.parametrize("kind", EVERY_METRIC)
def test_update_asks_the_device_nothing(kind: type[Metric], monkeypatch: Any) -> None:
    """
    An update with Python numbers reads nothing back from its tensors and builds none from
    Python lists, both of which would wait for a device.
    """
    metric = fed(kind, 0, 3)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("this waits for a device")

    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    monkeypatch.setattr(torch, "tensor", refuse)
    monkeypatch.setattr(torch, "nonzero", refuse)
    for number in range(3, 6):
        metric.update(*arguments(kind, number))

    monkeypatch.undo()
    assert metric.compute().item() == fed(kind, 0, 6).compute().item()


@pytest.mark.parametrize("kind", EVERY_METRIC)
def test_reset_clone_and_pickle(kind: type[Metric]) -> None:
    """
    A metric can be reset, copied and pickled; copies are their own.
    """
    metric = fed(kind, 0, 50)
    copies = [metric.clone(), pickle.loads(pickle.dumps(metric))]
    figure = metric.compute().item()
    metric.reset()

    assert math.isnan(metric.compute().item())
    assert [copy.compute().item() for copy in copies] == [figure, figure]


def test_collection_shares_only_what_is_the_same() -> None:
    """
    In a ``MetricCollection`` quantiles of one latency share a state, and a share of beats is
    never taken for a share of saves.
    """
    latencies = MetricCollection(
        {"p50": SyncLatency(quantile=0.5), "p99": SyncLatency()}, prefix="sla/"
    )
    for i in range(100):
        latencies.update(0.001 * (i + 1))
    rates = MetricCollection({"beats": Availability(), "saves": CheckpointSuccess()})
    for is_good in (True, True, False):
        rates.update(is_good)

    assert latencies.compute_groups == {0: ["p50", "p99"]}
    assert latencies.compute()["sla/p50"].item() == pytest.approx(0.05, rel=0.01)
    assert latencies.compute()["sla/p99"].item() == pytest.approx(0.099, rel=0.01)
    assert len(rates.compute_groups) == 2
    assert rates.compute()["saves"].item() == pytest.approx(2 / 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY_METRIC)
def test_draws_itself(kind: type[Metric], tmp_path: Path) -> None:
    """
    A figure, and a list of figures over time, can be drawn.
    """
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    metric = fed(kind, 0, 10)
    figure, _ = metric.plot()
    over_time, axes = metric.plot([metric(*arguments(kind, number)) for number in range(10, 15)])
    over_time.savefig(tmp_path / "over_time.png")

    assert len(axes.lines) == 1
    assert len(axes.lines[0].get_ydata()) == 5
    assert (tmp_path / "over_time.png").stat().st_size > 1_000
    plt.close(figure)
    plt.close(over_time)
