"""The process groups of this rank, and a small exchange over each of them."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

NUM_VALUES = 1024
"""Numbers in the all-reduce: enough to travel in several pieces."""

POLL_S = 0.002
SETTLE_S = 0.5
"""How long after the deadline a backend with time-outs of its own gives up, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One backend of one process group."""

    group: Any
    """The ``ProcessGroup``."""

    name: str
    """Name for people: ``default``, or the group's own description or number."""

    backend: str
    """For example ``gloo`` or ``nccl``."""

    device: str
    """Where its tensors live, for example ``cpu`` or ``cuda:1``."""

    ranks: tuple[int, ...]
    """Global ranks of the group, in the order of the group."""


def own_channels() -> list[Channel]:
    """Every backend of every process group that this rank belongs to, oldest first.

    All members of a group have it in the same place of their common groups, because
    torch makes every rank create all groups in the same order.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    # Torch has no public list of its groups.
    return [
        Channel(
            group=group,
            name=_name_of(group),
            backend=backend,
            device=_own_device(device),
            ranks=tuple(dist.get_process_group_ranks(group)),
        )
        for group in c10d._world.pg_map
        for backend, device in device_by_backend(dist.get_backend_config(group)).items()
    ]


def default_store() -> Any:
    """The store of the default process group."""
    from torch.distributed import distributed_c10d as c10d

    return c10d._get_default_store()


def device_by_backend(config: str) -> dict[str, str]:
    """One device for each backend of a group, preferring the CPU.

    Args:
        config: As torch writes it, for example ``cpu:gloo,cuda:nccl``.

    Example:
        >>> device_by_backend("cpu:gloo,cuda:gloo")
        {'gloo': 'cpu'}
        >>> device_by_backend("cpu:gloo,cuda:nccl")
        {'gloo': 'cpu', 'nccl': 'cuda'}
    """
    chosen: dict[str, str] = {}
    for part in config.split(","):
        device, _, backend = part.partition(":")
        if backend not in chosen or device == "cpu":
            chosen[backend] = device
    return chosen


def find_mistake(channel: Channel, rank: int, deadline_s: float) -> str | None:
    """Reduces and gathers known numbers over a channel, and checks what comes back.

    Collective over the channel's ranks. Never waits for a collective inside torch: the
    work is started and then asked.

    Args:
        channel: What to probe.
        rank: Global rank of this process.
        deadline_s: When to give up, on the monotonic clock, in seconds.

    Returns:
        What is wrong with the answer, or None if it is right.

    Raises:
        TimeoutError: If no answer came.
        RuntimeError: What the backend says if it failed.
    """
    import torch
    from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, ReduceOp

    sums = torch.tensor(values_of(rank), dtype=torch.int64, device=channel.device)
    reduce = _with_timeout(AllreduceOptions(), deadline_s)
    reduce.reduceOp = ReduceOp.SUM
    _finish(channel.group.allreduce([sums], reduce), deadline_s)

    view = torch.tensor(view_of(channel.ranks, rank), dtype=torch.int64, device=channel.device)
    views: list[Tensor] = [torch.zeros_like(view) for _ in channel.ranks]
    gather = _with_timeout(AllgatherOptions(), deadline_s)
    _finish(channel.group.allgather([views], [view], gather), deadline_s)
    return sum_mistake(sums.tolist(), channel.ranks) or view_mistake(
        [one.tolist() for one in views], channel.ranks
    )


def values_of(rank: int) -> list[int]:
    """What a rank puts into the all-reduce: multiples of its number, from 1."""
    return [(rank + 1) * (place + 1) for place in range(NUM_VALUES)]


def view_of(ranks: Sequence[int], rank: int) -> list[int]:
    """What a rank says of a group: its own number, its place, the size and the members."""
    members = zlib.crc32(",".join(map(str, ranks)).encode())
    return [rank, tuple(ranks).index(rank), len(ranks), members]


def sum_mistake(sums: Sequence[int], ranks: Sequence[int]) -> str | None:
    """What is wrong with the result of the all-reduce, or None.

    Example:
        >>> sum_mistake([3, 6, 8], ranks=[0, 1])
        'the all-reduce gave 8 for number 2 and must give 9'
    """
    total = sum(rank + 1 for rank in ranks)
    for place, value in enumerate(sums):
        if value != total * (place + 1):
            return f"the all-reduce gave {value} for number {place} and must give " + str(
                total * (place + 1)
            )
    return None


def view_mistake(views: Sequence[Sequence[int]], ranks: Sequence[int]) -> str | None:
    """What is wrong with the result of the all-gather, or None."""
    for rank, view in zip(ranks, views, strict=True):
        right = view_of(ranks, rank)
        if list(view) != right:
            return (
                f"the all-gather gave {list(view)} from rank {rank} and must give {right} "
                "(rank, place in the group, size of the group, its members)"
            )
    return None


def _own_device(kind: str) -> str:
    import torch

    if kind == "cpu":
        return kind
    # The probe runs in a thread, and a thread of its own starts on device 0.
    return f"{kind}:{torch.get_device_module(kind).current_device()}"


def _with_timeout(options: Any, deadline_s: float) -> Any:
    # Lets gloo's own thread give up too; otherwise the process could not end.
    left_s = max(0.0, deadline_s - time.monotonic()) + SETTLE_S
    options.timeout = timedelta(seconds=left_s)
    return options


def _finish(work: Any, deadline_s: float) -> None:
    while not work.is_completed():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(POLL_S)
    work.wait()  # returns at once, and raises what the backend found


def _name_of(group: Any) -> str:
    import torch.distributed as dist

    if group is dist.group.WORLD:
        return "default"
    is_described = group.group_desc not in ("", "undefined")
    return str(group.group_desc) if is_described else f"group {group.group_name}"
