"""Comparing copies between ranks: what of flipped bits is found, and what it costs, as Markdown.

    python benchmarks/replicas.py                             # all, on what this machine has
    python benchmarks/replicas.py --only gpu --gigabytes 5    # its cost on a GPU, of that state

The campaign runs three ranks in one process, through the parts that a job runs: the watch of
a rank, the coordinator's comparison, the rule. Its ranks train the same small network on
batches of their own with the mean of their gradients, as under DDP; then one bit of one of
them flips.
"""

import argparse
import random
import time
from collections import Counter
from functools import partial
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from _machine import heading, quantile
from torch import nn

from slav1.breach import Status
from slav1.contract import Contract
from slav1.coordinator.messages import RankDigests, RankReplicas
from slav1.coordinator.replicas import ReplicaSets
from slav1.replicas import Copy, Found, MicrobatchReplay, ReplicaWatch
from slav1.session.messages import Copies, Digests
from slav1.testing._memory import flip_bit

EVERY = 50
BUSY_CYCLES = 60_000_000
FIRST = 40
"""First step of a trial: looks come after it, after the 50th and after the 100th."""

TYPES = (torch.float32, torch.bfloat16, torch.float64)
KINDS = ("parameter", "exp_avg", "exp_avg_sq", "counter")


class Rank:
    """One rank of the campaign: a small network under AdamW, and an integer buffer of state."""

    def __init__(self, rank: int, num_ranks: int, kind: torch.dtype, contract: Contract) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)).to(kind)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.counter = torch.zeros(5, dtype=torch.int64)
        self.said: list[Any] = []
        self.ranks = tuple(range(num_ranks))
        session = SimpleNamespace(
            rank=rank,
            contract=contract,
            peers=SimpleNamespace(world_size=num_ranks),
            tell=self.said.append,
            note=self.said.append,
        )
        self.watch = ReplicaWatch(session, self.find)
        self.watch.begin(FIRST - 1)

    def tensors(self) -> dict[tuple[str, str], torch.Tensor]:
        found = {}
        for name, parameter in self.net.named_parameters():
            found[name, "parameter"] = parameter.detach()
            for kind, value in self.optimizer.state.get(parameter, {}).items():
                if value.dim():
                    found[name, kind] = value
        found["counter", "counter"] = self.counter
        return found

    def find(self) -> Found:
        return Found(
            copies=[
                Copy(name=name, kind=kind, ranks=self.ranks, tensor=tensor)
                for (name, kind), tensor in self.tensors().items()
            ]
        )

    def backward(self, batch: torch.Tensor) -> list[torch.Tensor]:
        self.net(batch).square().mean().backward()
        return [parameter.grad for parameter in self.net.parameters()]

    def step(self, step: int) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.counter += 1
        if step >= self.watch.due_step:
            self.watch.look(step)


def judge(ranks: list[Rank], sets: ReplicaSets, rule: Any, state: Any) -> tuple[Any, list[Any]]:
    """Hands to the rule what the ranks have said."""
    found = []
    for number, rank in enumerate(ranks):
        for message in rank.said:
            if isinstance(message, Copies):
                fields = {name: getattr(message, name) for name in message.__struct_fields__}
                sets.declare(RankReplicas(rank=number, **fields))
            elif isinstance(message, Digests):
                fields = {name: getattr(message, name) for name in message.__struct_fields__}
                for event in sets.add(RankDigests(rank=number, **fields)):
                    state, breach = rule.observe(state, event)
                    found += [breach] if breach is not None else []
            else:
                raise TypeError(message)
        rank.said.clear()
    return state, found


def trial(kind: torch.dtype, what: str, bit: int, num_ranks: int, seed: int) -> str:
    """Flips one bit and trains on; returns what became of it."""
    rng = random.Random(f"{kind} {what} {bit} {num_ranks} {seed}")
    contract = Contract.level("L1")
    rule = contract.rules["replica_divergence"].detector
    ranks = [Rank(rank, num_ranks, kind, contract) for rank in range(num_ranks)]
    sets, state = ReplicaSets(), rule.start()
    batches = torch.randn(4, 8, 6, generator=torch.Generator().manual_seed(seed)).to(kind)
    hit, hit_step = rng.randrange(num_ranks), rng.randrange(EVERY + 1, 2 * EVERY)
    places = list(enumerate(ranks))
    target: tuple[str, str] | None = None
    for step in range(FIRST, 2 * EVERY + 1):
        if step == hit_step:
            names = [name for name in ranks[hit].tensors() if name[1] == what]
            target = rng.choice(names)
            tensor = ranks[hit].tensors()[target]
            flip_bit(tensor, bit, rng.randrange(tensor.numel()))
        gradients = [rank.backward(batches[(step + at) % len(batches)]) for at, rank in places]
        for same in zip(*gradients, strict=True):
            mean = torch.stack(same).mean(0)
            for gradient in same:
                gradient.copy_(mean)
        for rank in ranks:
            rank.step(step)
        state, found = judge(ranks, sets, rule, state)
        breaches = [one for one in found if one.status is Status.BREACH]
        if breaches:
            if step < hit_step:
                return "false alarm"
            return _judged(breaches[0], ranks, hit, target, num_ranks)
    mine, other = ranks[hit].tensors(), ranks[hit - 1].tensors()
    is_healed = all(same_bits(mine[name], other[name]) for name in mine)
    return "healed by the next updates" if is_healed else "MISSED"


def _judged(breach: Any, ranks: list[Rank], hit: int, target: Any, num_ranks: int) -> str:
    named = {(one["parameter"], one["tensor"]) for one in breach.evidence["differing"]}
    suspects = breach.evidence["suspects"]
    wanted = [hit] if num_ranks > 2 else list(range(num_ranks))
    if suspects != wanted:
        return "found, WRONG RANK"
    mine, other = ranks[hit].tensors()[target], ranks[hit - 1].tensors()[target]
    if target in named:
        return "found, tensor named"
    # What was hit has healed, and what it spoilt before is named.
    return "found by its consequences" if same_bits(mine, other) else "found, WRONG TENSOR"


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8)))


def campaign(repeats: int, num_ranks: int) -> None:
    """Flips every bit of every kind of state."""
    print(f"## Flipped bits, {num_ranks} ranks, a look every {EVERY} steps\n")
    print(
        "| type | what | bits | flips | found, tensor and rank named | found by what it spoilt | "
        "healed before the look | missed or misnamed |"
    )
    print("| --- | --- | --: | --: | --: | --: | --: | --: |")
    ends: Counter[str] = Counter()
    for kind in TYPES:
        for what in KINDS:
            if what == "counter" and kind is not torch.float32:
                continue
            num_bits = 64 if what == "counter" else 8 * torch.empty(0, dtype=kind).element_size()
            told = Counter(
                trial(kind, what, bit, num_ranks, seed)
                for bit in range(num_bits)
                for seed in range(repeats)
            )
            ends += told
            good = (
                "found, tensor named",
                "found by its consequences",
                "healed by the next updates",
            )
            counts = [told.pop(name, 0) for name in good]
            name = "int64" if what == "counter" else str(kind).removeprefix("torch.")
            total = sum(counts) + told.total()
            print(
                f"| {name} | {what} | {num_bits} | {total} | "
                + " | ".join(map(str, counts))
                + f" | {told.total()} |",
                flush=True,
            )
    print(f"\nAll: {dict(ends)}\n")


def copies_of(tensors: list[torch.Tensor]) -> Found:
    copies = [
        Copy(name=f"p{number}", kind="parameter", ranks=(0, 1), tensor=tensor)
        for number, tensor in enumerate(tensors)
    ]
    return Found(copies=copies)


def watch_of(tensors: list[torch.Tensor], said: list[Any]) -> ReplicaWatch:
    session = SimpleNamespace(
        rank=0,
        contract=Contract.level("L1"),
        peers=SimpleNamespace(world_size=2),
        tell=said.append,
        note=said.append,
    )
    watch = ReplicaWatch(session, lambda: copies_of(tensors))
    watch.begin(-1)
    return watch


def cost_on_cpu(rounds: int) -> None:
    """What looking costs a trainer on the processor."""
    print("## Cost on the processor: processor time of one thread\n")
    torch.set_num_threads(1)
    cases = {
        "40 tensors, 0.6 MB": [torch.randn(3, 1250) for _ in range(40)],
        "900 tensors of 3 KB": [torch.randn(768) for _ in range(900)],
        "900 tensors, 64 MB": [torch.randn(768) for _ in range(600)]
        + [torch.randn(230, 230) for _ in range(300)],
        "60 tensors, 250 MB": [torch.randn(1024, 1024) for _ in range(60)],
    }
    print("| state | shares | a look, median (us) | GB/s | a step at K = 50 (us) |")
    print("| --- | --: | --: | --: | --: |")
    for name, tensors in cases.items():
        said: list[Any] = []
        watch = watch_of(tensors, said)
        watch.look(0)
        took: list[float] = []
        num_looks = 0
        for step in range(1, EVERY * rounds + 1):
            if step >= watch.due_step:
                start_s = time.thread_time()
                watch.look(step)
                took.append(time.thread_time() - start_s)
                num_looks += 1
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        shares = num_looks // rounds
        print(
            f"| {name} | {shares} | {median(took) * 1e6:.0f} | "
            f"{num_bytes / shares / median(took) / 1e9:.1f} | "
            f"{median(took) * shares / EVERY * 1e6:.0f} |",
            flush=True,
        )
    watch = watch_of(cases["40 tensors, 0.6 MB"], [])
    watch.look(0)
    number, step = 1_000_000, 1
    start_s = time.thread_time()
    for _ in range(number):
        if step >= watch.due_step:
            raise AssertionError
    print(f"\nA step without a look: {(time.thread_time() - start_s) / number * 1e9:.0f} ns\n")


class Flawed(nn.Module):
    """Two layers; in a given share of its runs one bit between them flips."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 4)
        self.rng = rng
        self.share = 0.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.inner(inputs))
        if self.rng.random() < self.share:
            flipped = hidden.detach().clone()
            flip_bit(flipped, self.rng.randrange(32), self.rng.randrange(flipped.numel()))
            hidden = hidden + (flipped - hidden.detach())
        return self.outer(hidden)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return model(inputs).square().mean()


def recall(ratio: float, share: float, num: int, trials: int) -> None:
    """How often a fault in a share of the micro-batches is found within a number of them."""
    num_found = 0
    for seed in range(trials):
        rng = random.Random(f"{ratio} {share} {num} {seed}")
        torch.manual_seed(seed)
        model = Flawed(rng)
        replay = MicrobatchReplay(model, ratio=ratio, seed=seed)
        # The first one is no share of all: it is there to learn from, in health.
        for number in range(num + 1):
            if not replay.begin(number):
                continue
            inputs = torch.randn(4, 8)
            model.share = share if number else 0.0
            loss_of(model, inputs).backward()
            model.share = 0.0
            replay.end(partial(loss_of, model, inputs))
        num_found += replay.num_differing > 0
    expected = 1 - (1 - ratio * share) ** num
    error = (expected * (1 - expected) / trials) ** 0.5
    print(
        f"| {ratio:.3f} | {share:g} | {num} | {trials} | {num_found / trials:.3f} | "
        f"{expected:.3f} | {error:.3f} |",
        flush=True,
    )


def replays(trials: int) -> None:
    """Sampled replay of micro-batches: what it finds."""
    print("## Wrong arithmetic found by replaying micro-batches\n")
    print("Only micro-batches that are chosen are run; one bit of one activation flips.\n")
    print("| ratio | share of faulty ones | micro-batches | runs | found | 1-(1-rf)^n | its sd |")
    print("| --: | --: | --: | --: | --: | --: | --: |")
    for share, num in ((0.0, 1000), (1.0, 200), (0.3, 400), (0.3, 1000)):
        recall(0.005, share, num, trials)
    print()


def cost_on_gpu(gigabytes: float, rounds: int) -> None:
    """What looking costs on a GPU."""
    print("## Cost on a GPU\n")
    if not torch.cuda.is_available():
        print("Not measured: there is no GPU here.\n")
        return
    print(f"{torch.cuda.get_device_name()}, hash_tensor: {hasattr(torch, 'hash_tensor')}\n")
    print("| state | shares | K steps of looks, device time (ms) | host time (ms) | GB/s |", end="")
    print(" share of K = 50 steps of 18 ms |")
    print("| --- | --: | --: | --: | --: | --: |")
    size = int((gigabytes * 1e9 / 4 / 60) ** 0.5) // 64 * 64
    cases: dict[str, tuple[int, tuple[int, ...], torch.dtype]] = {
        "900 tensors of 3 KB": (900, (768,), torch.float32),
        f"60 tensors, {gigabytes:g} GB, fp32": (60, (size, size), torch.float32),
        f"120 tensors, {gigabytes:g} GB, bf16": (120, (size, size), torch.bfloat16),
    }
    for name, (num, shape, kind) in cases.items():
        tensors = [torch.randn(shape, device="cuda", dtype=kind) for _ in range(num)]
        said: list[Any] = []
        watch = watch_of(tensors, said)
        watch.look(0)
        torch.cuda.synchronize()
        device_ms, host_ms = [], []
        step = 1
        for _ in range(rounds):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            # The device is kept busy meanwhile, so that it never waits for the next launch.
            torch.cuda._sleep(BUSY_CYCLES)
            start_s = time.perf_counter()
            begin.record()
            for _ in range(EVERY):
                if step >= watch.due_step:
                    watch.look(step)
                step += 1
            end.record()
            host_ms.append((time.perf_counter() - start_s) * 1e3)
            torch.cuda.synchronize()
            device_ms.append(begin.elapsed_time(end))
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        took_ms = quantile(device_ms, 0.5)
        shares = len({tuple(one.slots) for one in said if isinstance(one, Digests)}) - 1
        print(
            f"| {name} | {max(1, shares)} | {took_ms:.2f} | {median(host_ms):.2f} | "
            f"{num_bytes / took_ms / 1e6:.0f} | {took_ms / (EVERY * 18) * 100:.3f} % |",
            flush=True,
        )
        del tensors, watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="flips of each bit")
    parser.add_argument("--rounds", type=int, default=10, help="times that all is looked at")
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--trials", type=int, default=2000, help="runs for each recall")
    parser.add_argument("--only", default="campaign,replay,cost,gpu")
    given = parser.parse_args()
    print(heading("Copies compared between ranks"))
    if "campaign" in given.only:
        torch.set_num_threads(1)
        campaign(given.repeats, num_ranks=3)
        campaign(1, num_ranks=2)
    if "replay" in given.only:
        torch.set_num_threads(1)
        replays(given.trials)
    if "cost" in given.only:
        cost_on_cpu(given.rounds)
    if "gpu" in given.only:
        cost_on_gpu(given.gigabytes, given.rounds)


if __name__ == "__main__":
    main()
