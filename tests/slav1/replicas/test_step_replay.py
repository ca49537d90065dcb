"""Steps of a host that are run twice, unseen by it."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from slav1.contract import Contract
from slav1.replicas import StepReplay, replay_for

EVERY = {"replica_divergence": {"replay_ratio": 1.0}}


class Recorder:
    """A recorder that only knows what is beside the step."""

    num_beside = 0

    @contextlib.contextmanager
    def beside(self, phase: int) -> Iterator[None]:
        self.num_beside += 1
        yield


@dataclass
class FakeSession:
    """A session that keeps what is said."""

    clauses: dict[str, Any] = field(default_factory=lambda: EVERY)
    rank: int = 0
    recorder: Recorder = field(default_factory=Recorder)

    def __post_init__(self) -> None:
        self.contract = Contract.level("L1").override(**self.clauses)
        self.peers = self
        self.said: list[tuple[str, dict[str, Any]]] = []

    def record(self, kind: str, message: str, **evidence: Any) -> None:
        self.said.append((message, evidence))

    @property
    def messages(self) -> list[str]:
        return [message for message, _ in self.said]

    @property
    def differing(self) -> list[tuple[int, list[str], str]]:
        """What was found: step, names, which run was wrong."""
        told = [(e["step"], e["replay"]) for _, e in self.said if "replay" in e]
        return [(step, t["differing"], t["wrong"]) for step, t in told if t["num_differing"]]


class Stack(nn.Module):
    """Two layers with dropout and running statistics; counts, keeps and fails as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 2)
        self.num_calls = 0
        self.seen: list[int] = []
        self.total = torch.zeros(())
        self.before: Any = lambda tensor: tensor

    def forward(self, inputs: Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        self.num_calls += 1
        self.seen.append(self.num_calls)
        self.total += inputs.detach().sum()
        hidden = functional.dropout(self.norm(self.first(inputs)).relu_(), 0.5)
        return {"logits": self.before(self.last(hidden)) * scale, "name": "stack"}


class Training:
    """Trains modules by a loss that is code outside of them."""

    def __init__(
        self,
        modules: dict[str, nn.Module] | None = None,
        loss: Callable[..., Tensor] | None = None,
        **session: Any,
    ) -> None:
        torch.manual_seed(3)
        self.modules = nn.ModuleDict(modules or {"stack": Stack()})
        self.loss = loss or (lambda stack, inputs: stack(inputs)["logits"].square().mean())
        self.session = FakeSession(**session)
        self.found: list[dict[str, Any]] = []
        self.replay: StepReplay | None = replay_for(
            self.session,
            lambda: list(self.modules.items()),
            tell_first=self.tell if self.session.contract.seeds.probe else None,
        )
        self.optimizer = torch.optim.AdamW(self.modules.parameters(), lr=0.01)
        self.step = 0

    def tell(self, step: int, **found: Any) -> None:
        self.found.append(found)

    def run(self, num_steps: int) -> "Training":
        for _ in range(num_steps):
            if self.replay is not None:
                self.replay.expect(self.step)
            inputs = torch.randn(6, 4)
            loss = self.loss(*self.modules.values(), inputs)
            if self.replay is not None:
                self.replay.begin_backward()
            loss.backward()
            if self.replay is not None:
                self.replay = self.replay.end_backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
        return self

    def state(self) -> list[Any]:
        kept = [value.clone() for value in self.modules.state_dict().values()]
        stack = self.modules["stack"]
        return [*kept, stack.total, torch.tensor(stack.seen), torch.get_rng_state()]


class Once:
    """Spoils one number of what it is given, or of its gradient, once; not an attribute that is
    put back."""

    def __init__(self, *, in_backward: bool = False, times: int = 1) -> None:
        self.in_backward = in_backward
        self.left = SimpleNamespace(times=times)

    def __call__(self, tensor: Tensor) -> Tensor:
        if not self.left.times:
            return tensor
        self.left.times -= 1
        if self.in_backward:
            tensor.register_hook(wrong)
            return tensor
        return tensor + (wrong(tensor.detach()) - tensor.detach())


def wrong(tensor: Tensor) -> Tensor:
    """The tensor with one number wrong."""
    spoilt = tensor.clone()
    spoilt[0, 0] += 0.25
    return spoilt


def test_a_replayed_training_is_the_one_without() -> None:
    """
    Weights, statistics, random numbers, and what modules count and collect are those of a
    training without, and all that repeats is said once.
    """
    without = Training(clauses={}).run(8)
    replayed = Training().run(8)

    assert without.replay is None
    assert all(map(torch.equal, without.state(), replayed.state()))
    assert replayed.session.differing == []
    begins, repeats = replayed.session.messages
    assert begins.startswith("100.00% of the micro-batches are run twice, by calls of stack: 7 ")
    assert repeats == (
        "A second run of micro-batch 0 of step 1 on rank 0 gave the same bits in 7 tensors."
    )
    assert replayed.session.recorder.num_beside == 8


@pytest.mark.parametrize("in_backward", [False, True])
def test_one_wrong_number_is_found(in_backward: bool) -> None:
    """
    A number that comes out wrong once, in the forward or in the backward, is found in that
    step, and the run that was wrong is told by a third; the next one that repeats is told too.
    """
    training = Training().run(4)
    training.modules["stack"].before = Once(in_backward=in_backward)
    training.run(3)

    ((step, names, which),) = training.session.differing
    assert (step, which) == (4, "first")
    assert names[0] == ("stack.last.bias" if in_backward else "output logits of stack")
    assert ("output logits of stack" in names) != in_backward
    assert "step 5 on rank 0 gave the same bits" in training.session.messages[-1]


def residual(one: nn.Module, other: nn.Module, inputs: Tensor) -> Tensor:
    hidden = one(inputs)
    return (other(hidden) + hidden).square().mean() + one.weight.square().sum()


def checkpointed(stack: nn.Module, inputs: Tensor) -> Tensor:
    return checkpoint(stack, inputs, use_reentrant=False)["logits"].square().mean()


def cast(stack: nn.Module, inputs: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return stack(inputs, scale=2.0)["logits"].float().square().mean()


def twice(stack: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        stack(inputs)
    one, other = stack(inputs)["logits"], stack(inputs * 2)["logits"]
    return (one - other).square().mean()


@pytest.mark.parametrize(
    ("make", "loss", "num_compared"),
    [
        (lambda: {"stack": Stack()}, checkpointed, 7),
        (lambda: {"stack": Stack()}, cast, 7),
        (lambda: {"stack": Stack()}, twice, 8),
        # Two weights and two biases, two outputs; the first weight and an input are left out.
        (lambda: {"one": nn.Linear(4, 4), "other": nn.Linear(4, 4)}, residual, 5),
    ],
)
def test_what_surrounds_modules_does_no_harm(
    make: Callable[[], Any], loss: Any, num_compared: int
) -> None:
    """
    Recomputed activations, casts, several calls of a module and gradients that code outside of
    modules adds to repeat, or are left out by name; forwards without gradients don't count.
    """
    training = Training(make(), loss).run(5)

    assert training.session.differing == []
    assert training.replay is not None
    *_, (_, evidence) = training.session.said
    assert evidence["replay"]["num_compared"] == num_compared


def test_says_what_it_leaves_out() -> None:
    """
    Gradients that code outside of modules adds to are named.
    """
    training = Training({"one": nn.Linear(4, 4), "other": nn.Linear(4, 4)}, residual).run(3)

    without = "Not compared, as code outside of modules adds to it: "
    assert any(
        f"{without}gradient of input 0 of other, one.weight" in m
        or f"{without}one.weight, gradient of input 0 of other" in m
        for m in training.session.messages
    )


def test_what_can_not_be_run_again_is_left_alone() -> None:
    """
    A forward that keeps something elsewhere, one that is compiled in place and an error in the
    second run end the replay, not the training, and are said.
    """
    counter = SimpleNamespace(runs=0)

    def grows(tensor: Tensor) -> Tensor:
        counter.runs += 1
        return tensor * min(counter.runs, 2)

    def fails(tensor: Tensor) -> Tensor:
        counter.runs += 1
        if counter.runs % 2 == 0:
            raise RuntimeError("out of luck")
        return tensor

    compiled = Stack()
    compiled._compiled_call_impl = compiled._call_impl
    keeping, failing, in_place = Training(), Training(rank=1), Training({"stack": compiled})
    keeping.modules["stack"].before = lambda t: grows(t) if t is not None else t
    keeping.run(1)
    counter.runs = 0
    keeping.run(1)
    counter.runs = 0
    failing.modules["stack"].before = fails
    failing.run(1)
    in_place.run(2)

    assert [t.replay for t in (keeping, failing, in_place)] == [None] * 3
    assert "something is kept between runs" in keeping.session.messages[-1]
    assert "rank 1 can't go on with it: RuntimeError: out of luck" in failing.session.messages[-1]
    assert "a Stack is compiled in place" in in_place.session.messages[-1]


def test_a_forward_that_speaks_to_others_is_not_run_again() -> None:
    """
    Where a forward holds a collective nothing is replayed: ranks that did not choose to would
    have to answer.
    """
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    try:
        training = Training()

        def gathers(tensor: Tensor) -> Tensor:
            distributed.all_reduce(tensor.detach().clone())
            return tensor

        training.modules["stack"].before = gathers
        training.run(3)
    finally:
        distributed.destroy_process_group()

    assert training.replay is None
    assert "a forward speaks to other ranks" in training.session.messages[-1]


def test_the_probe_names_what_does_not_repeat() -> None:
    """
    A step that repeats is told with the number of its tensors; of one that does not, what
    differs first is named, and nothing is replayed where no share is asked for.
    """
    probe = {"seeds": {"probe": True}}
    fine, noisy = Training(clauses=probe), Training(clauses=probe)
    own = torch.Generator().manual_seed(1)
    noisy.modules["stack"].norm.register_forward_hook(
        lambda module, args, out: out + torch.rand(out.shape, generator=own)
    )
    for training in (fine, noisy):
        training.run(2)

    assert fine.found == [
        {"first": "", "num_differing": 0, "num_compared": 7, "operators": (), "problem": ""}
    ]
    (found,) = noisy.found
    assert found["first"] == "output of stack.norm"
    assert 3 <= found["num_differing"] < found["num_compared"] == 7
    assert fine.replay is noisy.replay is None
    assert fine.session.said == noisy.session.said == []


def test_gross_errors_are_found_where_bits_do_not_repeat() -> None:
    """
    Where honest runs differ, that is said, honest differences are not told, and a gross error
    is.
    """
    training = Training()
    own = torch.Generator().manual_seed(1)
    noise = lambda t: t * (1 + 1e-4 * torch.rand((), generator=own))  # noqa: E731
    training.modules["stack"].before = noise
    training.run(6)
    assert "do not repeat bit for bit" in training.session.messages[0]
    assert training.session.differing == []
    once = Once(in_backward=True)
    training.modules["stack"].before = lambda t: once(noise(t) * (1e3 if once.left.times else 1))
    training.run(1)

    ((step, _, which),) = training.session.differing
    assert (step, which) == (6, "first")


def test_a_share_costs_its_share() -> None:
    """
    Of many micro-batches about the share is run again, and hooks lie on modules for those only.
    """
    training = Training(clauses={"replica_divergence": {"replay_ratio": 0.1}}).run(1)
    stack = training.modules["stack"]
    hooked = 0
    for _ in range(400):
        assert training.replay is not None
        training.replay.expect(training.step)
        hooked += bool(stack._forward_hooks)
        training.replay.drop()
        training.run(1)

    assert 20 < hooked < 70
    assert not stack._forward_hooks
    assert training.session.recorder.num_beside == 1 + hooked


def test_operators_without_a_deterministic_form_are_named() -> None:
    """
    Where a step does not repeat itself, the operators that torch knows not to are named, and
    no warning and no setting of torch is left behind.
    """
    own = torch.Generator().manual_seed(1)

    def loses_order(tensor: Tensor) -> Tensor:
        put = torch.zeros(2, 2).put_(torch.tensor([0, 1]), tensor[0], accumulate=False)
        return tensor + torch.rand((), generator=own) + put.sum()

    training = Training(clauses={"seeds": {"probe": True}})
    training.modules["stack"].before = loses_order
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.run(1)

    assert training.found[0]["operators"] == ("put_",)
    assert not torch.are_deterministic_algorithms_enabled()
