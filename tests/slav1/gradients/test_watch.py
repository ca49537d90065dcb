"""Reading gradients, leaving bad updates out, clipping and decaying, on processors."""

import copy
import math
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR

from slav1.contract.settings import GradientSettings
from slav1.gradients import GradientWatch
from slav1.gradients.watch import PLAN_STEPS
from slav1.torch_signals import NOTHING_READ


class Toy:
    """A small model with its optimizer, its watch and what the watch said."""

    def __init__(
        self, *sizes: int, has_reflex: bool = True, optimizer: Any = None, **settings: Any
    ) -> None:
        torch.manual_seed(3)
        sizes = sizes or (4, 3, 5)
        self.parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
        make = optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=0.1))
        self.optimizer = make(self.parameters)
        self.said: list[str] = []
        self.settings = GradientSettings(**settings)
        self.watch = GradientWatch(self.settings, has_reflex=has_reflex, tell=self.said.append)

    def step(self, scale: float = 1.0, **options: Any) -> Any:
        """One step with gradients of that size; returns what was read of it."""
        for parameter in self.parameters:
            parameter.grad = torch.full_like(parameter, scale)
        self.watch.before_update(self.optimizer, are_whole=True, **options)
        self.optimizer.step()
        readings = self.watch.take()
        if readings.norm is not None:
            self.watch.heard(readings.norm)
        return readings

    def values(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]


def same(one: Any, other: Any) -> bool:
    """Whether two nested states hold the same bits."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return all(map(same, one, other))
    return bool(one == other)


def test_reads_the_norm_of_all_gradients_together() -> None:
    """
    The norm is that of clip_grad_norm_, read before any clipping, also of half precision whose
    own range it leaves; every tenth step tells how many elements are zero.
    """
    toy = Toy()
    first = toy.step(2.0)
    expected = torch.nn.utils.clip_grad_norm_(toy.parameters, 1e9).item()
    toy.parameters[0].grad = torch.zeros(4)

    assert first.norm == pytest.approx(expected)
    assert first.zero_share == 0.0
    assert [toy.step().zero_share for _ in range(10)] == [None] * 9 + [0.0]

    half = Toy()
    half.parameters[:] = [torch.nn.Parameter(torch.ones(9, dtype=torch.float16))]
    half.optimizer = torch.optim.SGD(half.parameters, lr=0.0)
    assert half.step(60000.0).norm == pytest.approx(180000.0)


def test_complex_gradients_are_read_as_what_they_lie_as() -> None:
    """
    Complex parameters, as of spectral layers, are read, clipped and left out like others, beside
    real ones of half precision too, in the steps without a norm as well and without a warning.
    """
    toy = Toy(clip="adaptive")
    kinds = (torch.complex64, torch.bfloat16)
    toy.parameters[:] = [torch.nn.Parameter(torch.ones(3, dtype=k)) for k in kinds * 20]
    toy.optimizer = torch.optim.SGD(toy.parameters, lr=0.1)
    first = toy.step()
    for _ in range(40):
        toy.step()
    toy.step(100.0)
    clipped = toy.parameters[0].grad

    assert first.norm == pytest.approx(math.sqrt(120.0), rel=1e-2)
    assert clipped is not None and clipped.abs().max() < 2.0

    unread = Toy(norm=False)
    unread.parameters[:], unread.optimizer = toy.parameters, toy.optimizer
    assert unread.step().is_left_out is False
    before = unread.values()
    assert unread.step(math.nan).is_left_out is True
    assert same(before, unread.values())
    assert toy.said == unread.said == []


def test_a_look_that_fails_ends_looking_and_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Whatever goes wrong in a look at gradients is said once, and the update is made.
    """

    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("no such number")

    monkeypatch.setattr("slav1.gradients.watch.total_norm", fail)
    toy = Toy()
    before = toy.values()

    assert [toy.step() for _ in range(3)] == [NOTHING_READ] * 3
    assert not same(before, toy.values())
    assert toy.said == ["Gradients are not looked at any more: TypeError: no such number"]


def test_counts_zeros() -> None:
    """
    Half of the elements zero is a share of a half.
    """
    toy = Toy(8, 8)
    toy.parameters[0].grad, toy.parameters[1].grad = torch.zeros(8), torch.ones(8)

    toy.watch.before_update(toy.optimizer, are_whole=True)

    assert toy.watch.take().zero_share == 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_an_update_that_is_left_out_changes_nothing(name: str, bad: float) -> None:
    """
    Neither parameters nor any state of the optimizer change, not by a bit, and the step after
    it goes on as if it had never been.
    """

    def make(parameters: Any) -> Any:
        momentum = {"momentum": 0.9} if name == "SGD" else {}
        return getattr(torch.optim, name)(parameters, lr=0.1, **momentum)

    toy, unbroken = Toy(optimizer=make), Toy(optimizer=make)
    for each in (toy, unbroken):
        each.step(1.0)
    before = toy.values(), copy.deepcopy(toy.optimizer.state_dict())

    readings = toy.step(bad)

    assert readings.is_left_out is True
    assert not math.isfinite(readings.norm)
    assert same(before[0], toy.values())
    assert same(before[1], toy.optimizer.state_dict())
    for each in (toy, unbroken):
        assert each.step(0.5).is_left_out is False
    assert same(toy.values(), unbroken.values())


def test_one_bad_element_is_seen() -> None:
    """
    A single NaN anywhere is enough.
    """
    toy = Toy()
    for parameter in toy.parameters:
        parameter.grad = torch.ones_like(parameter)
    toy.parameters[1].grad[2] = math.nan

    toy.watch.before_update(toy.optimizer, are_whole=True)

    assert toy.watch.take().is_left_out is True


@pytest.mark.parametrize("options", [{"is_scaled": True}, {}], ids=["scaler", "off"])
def test_leaves_alone_what_a_scaler_skips_or_the_user_wants(options: dict[str, bool]) -> None:
    """
    With a gradient scaler at work, or without the reflex, no gradient is touched.
    """
    toy = Toy(has_reflex=bool(options))

    readings = toy.step(math.nan, **options)

    assert readings.is_left_out is False
    assert readings.is_scaled is bool(options)
    assert all(parameter.grad is not None for parameter in toy.parameters)


def test_a_large_model_is_looked_at_in_part() -> None:
    """
    Of 100 parameters the norm is read in some steps only, in the same ones on every rank; a NaN
    in all of them is seen in any step.
    """
    sizes = [64] * 100
    one, other = (Toy(*sizes, optimizer=lambda p: torch.optim.SGD(p, lr=0.0)) for _ in range(2))
    read = [(one.step().norm is not None, other.step().norm is not None) for _ in range(30)]

    assert all(here == there for here, there in read)
    assert 2 <= sum(here for here, _ in read) <= 6
    assert one.step(math.nan).is_left_out is True
    each = Toy(*sizes, norm_every=1)
    assert all(each.step().norm is not None for _ in range(3))


def test_what_is_wrong_in_one_small_gradient_is_seen_when_its_turn_comes() -> None:
    """
    A NaN in the first of 100 gradients leaves each update out; one that is in some other of those
    that are looked at does within 15 steps, and is not seen in each.
    """
    toy = Toy(*[64] * 100, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))

    def left_out_with(place: int) -> list[Any]:
        seen = []
        for _ in range(15):
            for parameter in toy.parameters:
                parameter.grad = torch.ones(64)
            toy.parameters[place].grad[7] = math.nan
            toy.watch.before_update(toy.optimizer, are_whole=True)
            seen.append(toy.watch.take().is_left_out)
        return seen

    assert all(left_out_with(0))
    assert any(left_out_with(99)) and not all(left_out_with(99))
    assert any(left_out_with(round(7 * 99 / 15)))


@pytest.mark.parametrize("sizes", [(5000,), (3, 40, 7), (300_000,), (200_000, 200_000, 3)])
def test_reading_changes_no_gradient(sizes: tuple[int, ...]) -> None:
    """
    One gradient or several, copied together for reading or not: norm and share of zeros are
    theirs, and they stay bit for bit what they were.
    """
    toy = Toy(*sizes, norm_every=1, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    for parameter in toy.parameters:
        parameter.grad = torch.randn(parameter.shape).clamp_(min=0)
    before = [parameter.grad.clone() for parameter in toy.parameters]
    together = torch.cat(before)

    toy.watch.before_update(toy.optimizer, are_whole=True)
    read = toy.watch.take()

    assert read.norm == pytest.approx(together.norm().item(), rel=1e-5)
    assert read.zero_share == pytest.approx((together == 0).float().mean().item(), abs=0.01)
    assert all(map(torch.equal, before, [parameter.grad for parameter in toy.parameters]))


def test_large_halves_are_finite() -> None:
    """
    Gradients in half precision whose norm leaves its range are no reason to leave an update out,
    also in a step in which only some of them are looked at.
    """
    toy = Toy(*[64] * 100, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    for parameter in toy.parameters:
        parameter.data = parameter.data.half()
    readings = [toy.step(6e4) for _ in range(10)]

    assert not any(one.is_left_out for one in readings)
    assert toy.step(math.inf).is_left_out is True


@pytest.mark.parametrize("way", ["sparse", "spread", "stranger"])
def test_what_can_t_be_read_is_said_once(way: str) -> None:
    """
    Sparse and spread gradients and optimizers of others are left alone; a norm that the host
    knows is taken.
    """
    toy = Toy()
    for parameter in toy.parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer: Any = object() if way == "stranger" else toy.optimizer
    if way == "sparse":
        toy.parameters[0].grad = torch.ones(4).to_sparse()

    for _ in range(3):
        toy.watch.before_update(optimizer, are_whole=way != "spread", known_norm=torch.tensor(7.0))

    assert len(toy.said) == 1
    assert "not looked at" in toy.said[0]
    assert toy.watch.take().norm == pytest.approx(7.0 * 3**0.5)
    assert toy.watch.take() == NOTHING_READ


def test_an_update_without_a_sync_is_left_alone_and_said() -> None:
    """
    What each rank updates with by itself, as in LocalSGD, is not looked at, for that reason
    and no other, until an update comes after a sync again; LBFGS is told as what it is.
    """
    toy = Toy()
    bfgs: Any = torch.optim.LBFGS(toy.parameters)
    for parameter in toy.parameters:
        parameter.grad = torch.full_like(parameter, math.nan)

    for optimizer in (toy.optimizer, toy.optimizer, bfgs):
        toy.watch.before_update(optimizer, are_whole=True, is_reduced=False)
    assert toy.watch.take() == NOTHING_READ
    toy.watch.before_update(toy.optimizer, are_whole=True)

    assert toy.watch.take().is_left_out is True
    assert ["no sync of ranks" in said for said in toy.said] == [True, False]
    assert "because LBFGS asks" in toy.said[1]


@pytest.mark.parametrize("is_alike", [True, False])
def test_parts_are_left_out_only_by_a_norm_that_is_the_same_on_all_ranks(is_alike: bool) -> None:
    """
    Where a rank holds parts of gradients, a bad norm takes them away if every rank has that
    number, and is only recorded if another rank may have another.
    """
    toy = Toy()
    before = [parameter.detach().clone() for parameter in toy.parameters]
    for parameter in toy.parameters:
        parameter.grad = torch.ones_like(parameter)

    toy.watch.before_update(
        toy.optimizer,
        are_whole=False,
        known_norm=torch.tensor(math.inf),
        is_known_alike=is_alike,
    )
    toy.optimizer.step()

    read = toy.watch.take()
    assert (read.norm, read.is_left_out) == (math.inf, is_alike)
    assert all(map(torch.equal, toy.parameters, before)) is is_alike


def test_layers_may_be_thawed() -> None:
    """
    A parameter that is trained only later is taken in, and never updated alone: where one
    gradient is bad none is used, whether or not it was known.
    """
    toy = Toy(9, 16, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    toy.parameters[1].requires_grad_(False)

    def step(*scales: float) -> Any:
        for parameter, scale in zip(toy.parameters, scales, strict=True):
            parameter.grad = torch.full_like(parameter, scale) if parameter.requires_grad else None
        toy.watch.before_update(toy.optimizer, are_whole=True)
        toy.optimizer.step()
        return toy.watch.take()

    assert step(1.0, 0.0).norm == pytest.approx(3.0)
    toy.parameters[1].requires_grad_(True)
    before = toy.values()
    assert step(math.nan, 1.0).is_left_out is True
    assert same(before, toy.values())
    norms = [step(1.0, 1.0).norm for _ in range(PLAN_STEPS)]
    assert norms[-1] == pytest.approx(5.0)


def test_no_norm_is_told_that_nobody_wants() -> None:
    """
    Without norms the reflex works all the same.
    """
    toy = Toy(norm=False)

    assert toy.step(1.0).norm is None
    assert toy.step(math.nan).is_left_out is True


def test_several_optimizers_make_one_norm() -> None:
    """
    The norms of the optimizers of one step are put together.
    """
    toy = Toy(9, 16, optimizer=lambda p: torch.optim.SGD(p[:1], lr=0.0))
    other = torch.optim.SGD(toy.parameters[1:], lr=0.0)
    for parameter in toy.parameters:
        parameter.grad = torch.ones_like(parameter)

    toy.watch.before_update(toy.optimizer, are_whole=True)
    toy.watch.before_update(other, are_whole=True)

    assert toy.watch.take().norm == pytest.approx(5.0)


SCHEDULES = {
    "exponential": lambda optimizer: ExponentialLR(optimizer, 0.9),
    "one_cycle": lambda optimizer: OneCycleLR(optimizer, 0.5, total_steps=40),
}


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_decayed_rate_leaves_schedules_alone(schedule: str, rate: Any) -> None:
    """
    While it lasts each update sees half the rate of its schedule; the schedule, and whoever
    looks between two steps, sees its own, and afterwards all is as if nothing had been.
    """

    def run(*, is_restrained: bool) -> tuple[list[float], list[float], Toy]:
        def make(parameters: Any) -> Any:
            given = rate.clone() if isinstance(rate, torch.Tensor) else rate
            return torch.optim.SGD(parameters, lr=given)

        toy = Toy(optimizer=make, decay_steps=5)
        scheduler = SCHEDULES[schedule](toy.optimizer)
        group = toy.optimizer.param_groups[0]
        between, used = [], []
        for number in range(12):
            if number == 3 and is_restrained:
                toy.watch.restrain(0.0, [toy.optimizer])
            before = toy.parameters[0][0].item()
            toy.step(1.0)
            used.append(before - toy.parameters[0][0].item())
            scheduler.step()
            between.append(float(group["lr"]))
        return between, used, toy

    between, used, _ = run(is_restrained=False)
    seen, decayed, toy = run(is_restrained=True)

    assert seen == pytest.approx(between)
    halves = [0.5 if 3 <= number < 8 else 1.0 for number in range(12)]
    assert decayed == pytest.approx([u * h for u, h in zip(used, halves, strict=True)], rel=1e-3)
    assert toy.said == ["Learning rates and gradients are as they were before clip_and_decay."]


def test_clips_to_the_usual_norm_while_restrained() -> None:
    """
    After an order a gradient ten times the usual is shortened to it, and one below it is not.
    """
    toy = Toy(16, decay_steps=3, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    for _ in range(20):
        toy.step(1.0)
    usual = toy.watch.usual_norm

    said = toy.watch.restrain(usual, [toy.optimizer])

    def clipped(scale: float) -> float:
        readings = toy.step(scale)
        assert readings.norm == pytest.approx(4.0 * scale)
        return float(toy.parameters[0].grad.norm())

    assert usual == pytest.approx(4.0)
    assert "clipped to a norm of 4" in said and "0.5" in said
    assert [clipped(10.0), clipped(0.5), clipped(10.0), clipped(10.0)] == pytest.approx(
        [4.0, 2.0, 4.0, 40.0], rel=1e-4
    )


def test_orders_add_up_to_a_floor() -> None:
    """
    Repeated decays multiply, but never below the least.
    """
    toy = Toy(decay=0.5, min_decay=0.2)

    said = [toy.watch.restrain(0.0, [toy.optimizer]) for _ in range(3)]

    assert ["0.5" in said[0], "0.25" in said[1], "0.2," in said[2]] == [True] * 3


def test_a_resumed_training_goes_on_as_restrained_as_it_was() -> None:
    """
    Norms, what is learned for clipping, and an order with its steps left survive a checkpoint:
    the resumed training makes the very updates of the unbroken one.
    """
    settings = {"clip": "adaptive", "decay_steps": 8}
    sizes = [1.0 + 0.1 * math.sin(n) for n in range(40)] + [9.0] * 12

    def run(stop_at: int | None) -> list[torch.Tensor]:
        toy = Toy(**settings)
        for number, size in enumerate(sizes):
            if number == 40:
                toy.watch.restrain(toy.watch.usual_norm, [toy.optimizer])
            if number == stop_at:
                state = torch.load(saved(toy.watch.state()), weights_only=True)
                resumed = Toy(**settings)
                for here, there in zip(resumed.parameters, toy.parameters, strict=True):
                    here.data.copy_(there)
                resumed.optimizer.load_state_dict(toy.optimizer.state_dict())
                resumed.watch.load(state)
                toy = resumed
            toy.step(size)
        return toy.values()

    assert same(run(None), run(43))
    assert same(run(None), run(30))


def saved(state: Any) -> Any:
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_adaptive_clipping_shortens_spikes_only() -> None:
    """
    A norm far above the recent ones is shortened to near them, the further the nearer; ordinary
    ones are not touched, and what is learned does not run away with a spike.
    """
    toy = Toy(16, clip="adaptive", optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    generator = torch.Generator().manual_seed(1)
    scales = (1.0 + 0.1 * torch.randn(200, generator=generator)).tolist()

    def clipped(scale: float) -> float:
        norm = toy.step(scale).norm
        return float(toy.parameters[0].grad.norm()) / norm

    shares = [clipped(scale) for scale in scales]
    spike, again = clipped(50.0), clipped(50.0)
    after = clipped(1.0)

    assert sum(share < 0.999 for share in shares) < 10
    assert min(shares) > 0.8
    assert 0.015 < spike < 0.03
    assert again == pytest.approx(spike, rel=0.5)
    assert after == pytest.approx(1.0)


def test_adaptive_clipping_does_not_hold_gradients_at_zero() -> None:
    """
    Where gradients were zero for long, the first that are not are no spikes.
    """
    toy = Toy(16, clip="adaptive", optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    for _ in range(40):
        toy.step(0.0)
    toy.step(1.0)

    assert torch.equal(toy.parameters[0].grad, torch.ones(16))


def test_what_ddp_leaves_alone_is_in_no_norm() -> None:
    """
    A parameter whose gradient is not reduced decides nothing, since it is another on each rank.
    """
    toy = Toy(16, 4)
    ignored: Any = toy.parameters[1]
    ignored._ddp_ignored = True

    assert toy.step(2.0).norm == pytest.approx(8.0)
    toy.parameters[0].grad, ignored.grad = torch.ones(16), torch.full((4,), math.nan)
    toy.watch.before_update(toy.optimizer, are_whole=True)
    assert toy.watch.take().is_left_out is False
