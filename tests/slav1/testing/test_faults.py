"""When a planned fault acts, and what it does to tensors."""

import time
from typing import NamedTuple

import pytest
import torch
from torch.nn.functional import cross_entropy

from slav1.testing import Fault, Faults, InjectedFaultError


def of(*texts):
    return Faults([Fault.parse(text) for text in texts], rank=0)


def acted(faults, steps):
    """The positions at which a loss of 1 came back changed."""
    return [i for i, step in enumerate(steps) if float(faults.loss(step, torch.ones(()))) != 1]


def test_a_fault_acts_in_its_steps_only():
    """
    A fault of three steps from step 4 hits steps 4, 5 and 6.
    """
    assert acted(of("jump:step=4,steps=3"), range(12)) == [4, 5, 6]


def test_every_micro_batch_of_a_step_is_hit():
    """
    Under gradient accumulation all micro-batches of a step are hit, and they count as one.
    """
    assert acted(of("jump:step=1,steps=2"), [0, 0, 1, 1, 2, 2, 3, 3]) == [2, 3, 4, 5]


@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_repeated_step_is_spared(num_steps):
    """
    After a rollback the same steps run again without the fault.
    """
    faults = of(f"jump:step=4,steps={num_steps}")

    assert acted(faults, range(3, 4 + num_steps)) == list(range(1, 1 + num_steps))
    assert acted(faults, range(3, 12)) == []


def test_a_side_effect_happens_once_a_step():
    """
    An exception that was caught is not raised again by the next micro-batch.
    """
    faults = of("exception:step=2,where=backward")
    faults.at("backward", 1)
    faults.at("forward", 2)
    with pytest.raises(InjectedFaultError, match="rank 0, step 2, on entering backward") as caught:
        faults.at("backward", 2)
    faults.at("backward", 2)

    assert (caught.value.rank, caught.value.step, caught.value.where) == (0, 2, "backward")


def test_a_straggler_multiplies_its_own_time():
    """
    With a factor the part takes that many times as long, measured against this rank's
    own earlier times, and what was injected does not feed back into the base.
    """
    faults, entered_s = of("straggler:factor=3,where=forward"), []
    for step in range(8):
        faults.at("data", step)
        begin_s = time.perf_counter()
        faults.at("forward", step)
        time.sleep(0.01)
        entered_s.append(time.perf_counter() - begin_s)

    assert entered_s[0] < 0.025
    assert all(0.025 < entered < 0.1 for entered in entered_s[2:]), entered_s


def test_a_sleep_of_every_step():
    """
    A sleep with every=true sleeps in each step from the given one on.
    """
    faults, slept_s = of("sleep:step=2,seconds=0.02,every=true,where=data"), []
    for step in range(5):
        begin_s = time.perf_counter()
        faults.at("data", step)
        slept_s.append(time.perf_counter() - begin_s)

    assert [slept >= 0.02 for slept in slept_s] == [False, False, True, True, True]


def test_a_loss_stays_in_the_graph():
    """
    NaN and jump reach the gradients through the loss, as real ones would.
    """
    weight = torch.ones((), requires_grad=True)

    of("jump:step=0,factor=5").loss(0, weight * 2).backward()
    assert weight.grad == 10
    of("nan:step=0").loss(0, weight * 2).backward()
    assert weight.grad.isnan()


def test_a_leak_keeps_memory_of_every_step_from_its_own_on():
    """
    From its step on the fault keeps so many MiB, once a step however many micro-batches it
    has, on the device and of the type of the loss, which it leaves as it is.
    """
    faults = of("leak:step=2,mib=0.5")

    losses = [faults.loss(step, torch.ones(())) for step in (0, 1, 2, 2, 3, 4)]

    assert all(float(loss) == 1 for loss in losses)
    assert [kept.numel() * kept.element_size() for kept in faults._kept] == [1 << 19] * 3
    assert not any(kept.requires_grad for kept in faults._kept)


def test_a_gradient_gets_a_nan():
    """
    The first parameter that has a gradient gets one NaN; without any it is an error.
    """
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    model[0].requires_grad_(False)
    faults = of("nan:step=3,what=gradient")
    with pytest.raises(ValueError, match="needs a parameter with a gradient"):
        of("nan:step=3,what=gradient").gradients(3, model.parameters())
    model(torch.ones(1, 2)).backward()
    faults.gradients(2, model.parameters())
    before = sum(int(p.grad.isnan().sum()) for p in model[1].parameters())
    faults.gradients(3, model.parameters())

    assert before == 0
    assert sum(int(p.grad.isnan().sum()) for p in model[1].parameters()) == 1


def test_a_batch_gets_nan_without_touching_the_data():
    """
    The first floating-point tensor becomes NaN in a copy; the data set keeps its own.
    """
    batch = {"ids": torch.arange(3), "x": [torch.ones(2), torch.ones(2)]}
    hit = of("nan:step=0,what=batch").batch(0, batch)

    assert hit["x"][0].isnan().all()
    assert hit["ids"] is batch["ids"]
    assert not batch["x"][0].isnan().any()


def test_a_batch_without_anything_to_hit_is_an_error():
    """
    A fault that can't do what was asked says what the batch holds.
    """
    with pytest.raises(ValueError, match=r"floating-point .* got Tensor with torch.int64"):
        of("nan:step=0,what=batch").batch(0, torch.arange(3))
    with pytest.raises(ValueError, match="needs a tensor in the batch; got str with no tensor"):
        of("spike:step=0").batch(0, "text")


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        (torch.arange(6), ()),
        ((torch.rand(3), torch.arange(3)), (1,)),
        ([torch.arange(4), torch.rand(4)], (0,)),
        ([torch.rand(4), torch.rand(4)], (1,)),
        (Pair(torch.rand(3), torch.tensor([0, 1, 1])), (1,)),
        ({"labels": torch.arange(3), "mask": torch.ones(3, dtype=torch.int)}, ("labels",)),
        ((torch.rand(3), {"y": torch.rand(3), "n": torch.arange(3)}), (1, "y")),
        ((torch.rand(2), torch.tensor([True, False])), (1,)),
        ((torch.rand(2), torch.tensor([0, 0])), (1,)),
        ((torch.rand(2), torch.tensor([4, 4])), (1,)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_spike_changes_every_target_and_nothing_else(batch, path):
    """
    Of every shape of batch the targets change, each of them, in range and type.
    """
    hit = of("spike:step=0").batch(0, batch)
    before, after = batch, hit
    for key in path:
        before, after = before[key], after[key]

    assert type(hit) is type(batch)
    assert (before != after).all()
    assert (before.dtype, before.shape) == (after.dtype, after.shape)
    if not before.is_floating_point():
        assert after.min() >= 0
        assert after.max() <= max(1, before.max())


def test_a_spike_leaves_ignored_positions():
    """
    Negative targets mean "do not count" and stay.
    """
    hit = of("spike:step=0").batch(0, torch.tensor([-100, 0, 1, 2, -100]))

    assert hit.tolist() == [-100, 1, 2, 0, -100]


@pytest.mark.slow
def test_a_spike_raises_a_real_loss():
    """
    A model that has learned something loses far more on the poisoned batches, and no
    random number was drawn for them.
    """
    torch.manual_seed(0)
    weights, model = torch.randn(16, 4), torch.nn.Linear(16, 4)
    faults, losses = of("spike:step=60,steps=5"), []
    for step in range(65):
        x = torch.randn(64, 16)
        state = torch.get_rng_state()
        x, y = faults.batch(step, (x, (x @ weights).argmax(1)))
        assert torch.equal(state, torch.get_rng_state())
        loss = cross_entropy(model(x), y)
        # By hand: importing torch.optim takes longer than the whole training.
        slopes = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter.sub_(slope)
        losses.append(float(loss.detach()))

    assert min(losses[60:]) > 3 * max(losses[50:60])


def test_sync_and_data_are_asked_for():
    """
    A skipped sync lasts its steps; data that has ended stays ended.
    """
    faults = of("skip_collective:step=2", "uneven:step=5")

    assert [faults.skips_sync(step) for step in range(5)] == [False, False, True, False, False]
    assert [faults.ends_data(step) for step in range(3, 8)] == [False, False, True, True, True]


def test_one_checkpoint_is_damaged_by_one_bit(tmp_path):
    """
    The first checkpoint that holds the step gets one flipped bit, no later one does.
    """
    faults = of("corrupt:step=5")
    file = tmp_path / "file"
    file.write_bytes(bytes(1000))

    faults.checkpoint(file, 4)
    assert sum(file.read_bytes()) == 0
    faults.checkpoint(file, 6)
    faults.checkpoint(file, 7)
    assert sum(file.read_bytes()) == 1


def test_nothing_to_damage_is_said(tmp_path):
    """
    A file without any content can't be damaged, and that is an error.
    """
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="holds no byte"):
        of("corrupt:step=0").checkpoint(tmp_path / "file", 0)
