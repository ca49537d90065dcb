"""What all that is done on a GPU costs a step of some milliseconds there, as Markdown.

    python benchmarks/gpu_step.py
    python benchmarks/gpu_step.py --layers 2 --step-ms 18 --rounds 1000

A network of transformer-like blocks trains in mixed precision under a fused AdamW; the batch is
made as large as it takes for a step to last as long as asked for. With and without take turns
step by step in one process, so that clocks and temperature hit all alike. What is done is put
together from the parts that a host uses. A step is timed on the device, from event to event; in
"host" stands what the thread that trains spends in our calls, which hides behind the device as
long as that is busy.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from statistics import mean, median, stdev
from types import SimpleNamespace
from typing import Any

import torch
from _machine import heading, quantile
from torch import Tensor, nn

from slav1.contract import Contract
from slav1.gradients import GradientWatch
from slav1.phase import Phase
from slav1.recorder import Block, Recorder
from slav1.replicas import Copy, Found, ReplicaWatch
from slav1.torch_memory import DeviceMemory
from slav1.torch_signals import NOTHING_READ, LossReader

EVERY = 50
WARMUP_ROUNDS = 10
WAYS = {
    "loss, memory, recorder": (False, False),
    "with gradients: norm, zeros, reflex": (True, False),
    "with digests": (False, True),
    "everything": (True, True),
}
"""What is on: gradients, digests."""


Hook = Callable[[], None]


def _nothing() -> None:
    """Where nobody watches."""


class Part(nn.Module):
    """One block: what a transformer has beside its attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        inner: Tensor = self.down(nn.functional.gelu(self.up(self.norm(inputs))))
        return inputs + inner


class Job:
    """A training on the device, one step at a time."""

    def __init__(self, layers: int, width: int, num_rows: int) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*[Part(width) for _ in range(layers)]).cuda()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-6, fused=True)
        self.width, self.is_ddp = width, True
        self.batch = torch.randn(num_rows, width, device="cuda")

    def step(self, begin_backward: Hook = _nothing, end_backward: Hook = _nothing) -> Tensor:
        """One step; returns the loss."""
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.net(self.batch).float().square().mean()
        begin_backward()
        loss.backward()
        end_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def fit_to(self, step_ms: float) -> None:
        """Makes the batch as large as it takes."""
        for _ in range(4):
            took_ms = median(self.timed_ms() for _ in range(5))
            num_rows = max(256, round(len(self.batch) * step_ms / took_ms / 256) * 256)
            self.batch = torch.randn(num_rows, self.width, device="cuda")

    def timed_ms(self) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.step()
        begin.record()
        self.step()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def copies(self) -> Found:
        """Weights and the optimizer's state, as two ranks would hold them."""
        found = []
        for name, parameter in self.net.named_parameters():
            kinds = {"parameter": parameter, **self.optimizer.state[parameter]}
            found += [
                Copy(name=name, kind=kind, ranks=(0, 1), tensor=tensor)
                for kind, tensor in kinds.items()
                if tensor.dim()
            ]
        # As DDP would hold them: then looks run beside the backward.
        like_ddp = SimpleNamespace(require_backward_grad_sync=True, parameters=self.net.parameters)
        return Found(copies=found, wrappers=[like_ddp] if self.is_ddp else [])


class Watched:
    """What a host does around a step."""

    def __init__(self, job: Job, *, has_gradients: bool, has_digests: bool) -> None:
        self._job = job
        self.said: list[Any] = []
        session: Any = SimpleNamespace(
            rank=0,
            contract=Contract.level("L2"),
            peers=SimpleNamespace(world_size=2),
            tell=self.said.append,
            note=self.said.append,
        )
        settings = session.contract.gradients
        self._gradients = (
            GradientWatch(settings, has_reflex=True, tell=print) if has_gradients else None
        )
        self.replicas = ReplicaWatch(session, job.copies)
        if has_digests:
            self.replicas.begin(-1)
        self._recorder = Recorder(Block.create(rank=0, num_slots=4096))
        self._losses = LossReader(self._recorder, lambda _: None)
        self._memory = DeviceMemory(self._recorder)
        self._step = -1
        self.host_us: list[float] = []
        self._spent_s = 0.0

    def step(self) -> None:
        """One step of the job, with all that is on."""
        self._spent_s, start_s = 0.0, time.perf_counter()
        self._recorder.enter(int(Phase.DATA))
        self._recorder.enter(int(Phase.FORWARD))
        self._spent_s += time.perf_counter() - start_s
        loss = self._job.step(self._begin_backward, self._end_backward)
        start_s = time.perf_counter()
        self._end_step(loss)
        self.host_us.append((self._spent_s + time.perf_counter() - start_s) * 1e6)

    def _begin_backward(self) -> None:
        start_s = time.perf_counter()
        self._recorder.enter_synced_backward()
        self._recorder.own_work_ends()
        if self.replicas.waiting:
            self.replicas.begin_backward()
        self._spent_s += time.perf_counter() - start_s

    def _end_backward(self) -> None:
        start_s = time.perf_counter()
        self.replicas.end_backward()
        self._recorder.leave_synced_backward(int(Phase.OPTIMIZER))
        if self._gradients is not None:
            self._gradients.before_update(self._job.optimizer, are_whole=True)
        self._spent_s += time.perf_counter() - start_s

    def _end_step(self, loss: Tensor) -> None:
        self._step += 1
        self._recorder.enter(int(Phase.BETWEEN))
        self._losses.add(loss)
        self._memory.read(self._step)
        gradient = NOTHING_READ if self._gradients is None else self._gradients.take()
        self._losses.end_step(self._step, scale=1, batch=self._step, flags=0, gradient=gradient)
        if self._step >= self.replicas.due_step:
            self.replicas.look(self._step)
        # What one way leaves on the optimizer must not reach the next.
        vars(self._job.optimizer).pop("found_inf", None)


def compare(job: Job, ways: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Lets all ways make a step in turn; returns the time of each step on the device, in ms.

    Args:
        job: Trains.
        ways: What makes a step; the first is what the others are compared with.
        rounds: How many steps each makes.
    """
    names = list(ways)
    marks: list[tuple[str, Any]] = []
    took_ms: dict[str, list[float]] = {name: [] for name in names}
    for number in range(WARMUP_ROUNDS + rounds):
        if number == WARMUP_ROUNDS:
            torch.cuda.synchronize()
            marks = [("", _mark())]
        # Each follows each of the others equally often.
        first = number % len(names)
        for name in (*names[first:], *names[:first])[:: 1 if number // len(names) % 2 else -1]:
            ways[name]()
            marks.append((name, _mark()))
    torch.cuda.synchronize()
    for (_, before), (name, after) in itertools.pairwise(marks):
        took_ms[name].append(before.elapsed_time(after))
    return took_ms


def _mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def differences(took_ms: dict[str, list[float]], name: str, other: str) -> list[float]:
    """How much longer ``name`` took than ``other``, in us: means of all rounds that make up the
    looks of ``EVERY`` steps."""
    pairs = zip(took_ms[name], took_ms[other], strict=True)
    apart = [(one - base) * 1e3 for one, base in pairs]
    return [mean(apart[i : i + EVERY]) for i in range(0, len(apart) - EVERY + 1, EVERY)]


def report(took_ms: dict[str, list[float]], host_us: dict[str, list[float]]) -> None:
    """Prints the table."""
    base, *names = took_ms
    usual_ms = median(took_ms[base])
    print("| what is on | step, ms | longer by, us | p10 to p90 | +- | % of the step | host, us |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print(f"| {base} | {usual_ms:.3f} | | | | | |")
    for name in names:
        apart_us = differences(took_ms, name, base)
        middle_us = median(apart_us)
        error_us = stdev(apart_us) / len(apart_us) ** 0.5 if len(apart_us) > 1 else 0.0
        host = f"{median(host_us[name]):.0f}" if host_us.get(name) else ""
        print(
            f"| {name} | {median(took_ms[name]):.3f} | {middle_us:.1f} | "
            f"{quantile(apart_us, 0.1):.1f} to {quantile(apart_us, 0.9):.1f} | {error_us:.1f} | "
            f"{middle_us / usual_ms / 10:.3f} | {host} |",
            flush=True,
        )


def main() -> None:
    """Prints the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2560)
    parser.add_argument("--step-ms", type=float, default=18.0)
    parser.add_argument("--rounds", type=int, default=800, help="steps of each way")
    given = parser.parse_args()
    print(heading("What everything on costs a step on a GPU"))
    if not torch.cuda.is_available():
        print("Not measured: there is no GPU here.")
        return
    job = Job(given.layers, given.width, 2048)
    job.fit_to(given.step_ms)
    num = sum(parameter.numel() for parameter in job.net.parameters())
    print(
        f"{torch.cuda.get_device_name()}; {num / 1e6:.0f} million parameters in "
        f"{len(list(job.net.parameters()))} tensors, {12 * num / 1e9:.2f} GB with AdamW's state, "
        f"fp32 under bf16 autocast; {len(job.batch)} rows a step; {given.rounds} steps of each "
        "way in turn; a difference is the median of means over 50 steps, +- its standard error.\n"
    )
    watched = {
        name: Watched(job, has_gradients=gradients, has_digests=digests)
        for name, (gradients, digests) in WAYS.items()
    }
    ways = {"nothing": job.step, **{name: one.step for name, one in watched.items()}}
    ways["nothing, again"] = job.step
    took_ms = compare(job, ways, given.rounds)
    report(took_ms, {name: one.host_us[WARMUP_ROUNDS:] for name, one in watched.items()})
    for name, one in watched.items():
        told = [message for message in one.said if isinstance(message, str)]
        print("".join(f"\n{name}: {message}" for message in told), end="")


if __name__ == "__main__":
    main()
