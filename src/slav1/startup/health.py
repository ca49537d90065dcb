"""The health probe: a bounded, checked exchange over every process group."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Sequence
from typing import cast

from slav1.startup._board import Board, Verdict, interval_s
from slav1.startup._channels import Channel, default_store, find_mistake, own_channels
from slav1.startup._expiry import as_ranges
from slav1.startup._rendezvous import Rendezvous
from slav1.startup._seconds import positive_seconds
from slav1.startup.health_report import GroupHealth, HealthProbeError, HealthReport

LOOK_S = 0.02
"""Usual pause between two looks at the store, in seconds."""

ROLL_CALL_S = 0.8
"""How long ranks have to answer a roll call, in seconds."""

ANSWER_S = 0.3
"""Within this time a store in good health answers, in seconds."""

CONCLUDE_S = 1.0
"""Longest wait for the store at the end, in seconds."""

PATIENCE_S = 0.5
"""How much longer a rank waits whose own probes went well, in seconds: those that are
stuck can say more."""

DONE, ROLL_CALL, ALIVE = "done", "roll-call", "alive"

_log = logging.getLogger("slav1.startup")
_numbers = itertools.count(1)


def validate_nccl_health(timeout_sec: float = 15.0) -> HealthReport:
    """Probes that every process group carries data, and carries it rightly.

    Collective over all ranks, once per call: all call it after they made the same
    groups. Over each backend of each group that a rank belongs to, numbers known in
    advance are all-reduced and the sums checked, and each rank's view of the group is
    gathered and compared. All ranks return, or all raise the same error. Nothing waits
    inside torch: a rank that does not take part holds the others for ``timeout_sec``
    and about two seconds at most.

    On a machine without NCCL it probes what there is, usually gloo, and says so.

    What it can't see: links that are slow but work, faults that need large messages or
    heat, groups made later, and ranks that fail after the call. A rank whose store is
    out of reach decides alone.

    Args:
        timeout_sec: Time for all groups together, in seconds; above 0, at most a week.

    Returns:
        What was probed and how long each took.

    Raises:
        TypeError: If ``timeout_sec`` is no number.
        ValueError: If ``timeout_sec`` is out of range.
        RuntimeError: If there is no process group yet.
        HealthProbeError: If a group did not answer in time, failed, or answered wrongly.

    Example:
        >>> import torch.distributed as dist
        >>> from slav1.startup import validate_nccl_health
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> report = validate_nccl_health(timeout_sec=15)
        >>> report.ok, [group.backend for group in report.groups]
        (True, ['gloo'])
        >>> dist.destroy_process_group()
    """
    import torch.distributed as dist

    timeout_s = positive_seconds("timeout_sec", timeout_sec)
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "validate_nccl_health needs a process group to probe: call it after "
            "torch.distributed.init_process_group()."
        )
    rank, world_size = dist.get_rank(), dist.get_world_size()
    probe = _Probe(own_channels(), rank=rank, deadline_s=time.monotonic() + timeout_s)
    board = Board(
        connect=default_store,
        prefix=f"slav1/health/{Rendezvous.read().attempt}/{next(_numbers)}",
        interval_s=interval_s(world_size, LOOK_S),
        watched=(DONE, ROLL_CALL, ALIVE),
    )
    try:
        verdict = _agree(board, probe, rank=rank, world_size=world_size, timeout_s=timeout_s)
    finally:
        board.close(ANSWER_S)
    if not verdict["is_healthy"]:
        raise _error_of(verdict)
    report = HealthReport(rank=rank, world_size=world_size, groups=tuple(probe.results))
    if not report.is_nccl_probed and rank == 0:
        _log.warning("validate_nccl_health: %s", report)
    return report


class _Probe:
    """Probes all channels in a thread: the set-up of NCCL's first collective may block."""

    def __init__(self, channels: Sequence[Channel], *, rank: int, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.results: list[GroupHealth] = []
        self.mistake: str | None = None
        self.is_done = threading.Event()
        self._channels = channels
        self._rank = rank
        threading.Thread(target=self._run, name="slav1 health", daemon=True).start()

    @property
    def channel(self) -> Channel:
        """The one that is being probed, or the last."""
        return self._channels[min(len(self.results), len(self._channels) - 1)]

    def _run(self) -> None:
        try:
            for channel in self._channels:
                begin_s = time.monotonic()
                self.mistake = find_mistake(channel, self._rank, self.deadline_s)
                if self.mistake is not None:
                    break
                self.results.append(
                    GroupHealth(
                        group=channel.name,
                        backend=channel.backend,
                        device=channel.device,
                        ranks=channel.ranks,
                        seconds_s=time.monotonic() - begin_s,
                    )
                )
        except TimeoutError:
            return  # the caller has the same deadline
        except Exception as error:  # noqa: BLE001 - it is passed on to all ranks
            # Whatever it was, this rank could not take part, and all ranks must hear so.
            # The first line: what follows is a C++ trace.
            first_line = next(iter(str(error).splitlines()), "")
            self.mistake = f"the backend says: {type(error).__name__}: {first_line:.200}"
            _log.debug("validate_nccl_health: %s", self.mistake, exc_info=error)
        self.is_done.set()


def _agree(board: Board, probe: _Probe, *, rank: int, world_size: int, timeout_s: float) -> Verdict:
    """Waits for the probe and for all others; returns the verdict of the job."""
    everyone = frozenset(range(world_size))
    is_announced = is_alive_said = False
    while board.verdict is None:
        now_s = time.monotonic()
        is_well = probe.is_done.is_set() and probe.mistake is None
        if board.present(ROLL_CALL) and not is_alive_said:
            board.announce(ALIVE, rank)
            is_alive_said = True
        if is_well and not is_announced:
            board.announce(DONE, rank)
            is_announced = True
        if probe.is_done.is_set() and probe.mistake is not None:
            return _conclude(board, probe.channel, rank, probe.mistake)
        if board.present(DONE) == everyone:
            return board.conclude({"is_healthy": True}, CONCLUDE_S)
        if now_s > probe.deadline_s + (PATIENCE_S if is_well else 0.0):
            reason = f"it did not answer within {timeout_s:g} s"
            if is_well:
                late = as_ranges(everyone - board.present(DONE))
                reason = f"it answered here, but ranks {late} did not end their probes in time"
            return _conclude(board, probe.channel, rank, reason)
        if is_well:
            time.sleep(LOOK_S / 4)
        else:
            probe.is_done.wait(LOOK_S)
    return board.verdict


def _conclude(board: Board, channel: Channel, rank: int, reason: str) -> Verdict:
    """Calls the roll, and proposes what was found as the verdict of the job."""
    board.announce(ROLL_CALL, rank)
    board.announce(ALIVE, rank)
    end_s = time.monotonic() + ROLL_CALL_S
    while time.monotonic() < end_s and not board.present(ALIVE).issuperset(channel.ranks):
        if board.verdict is not None:
            return board.verdict
        time.sleep(LOOK_S)
    has_store = board.look(ANSWER_S)
    if not has_store:
        reason += "; the job's store can't be reached either: look at its host, usually rank 0"
    alive = board.present(ALIVE) | {rank}
    return board.conclude(
        {
            "is_healthy": False,
            "group": channel.name,
            "backend": channel.backend,
            "answered": [*sorted(alive.intersection(channel.ranks))],
            "silent": [*sorted(set(channel.ranks) - alive)],
            "reason": reason,
            "found_by": rank,
        },
        CONCLUDE_S if has_store else 0.0,
    )


def _error_of(verdict: Verdict) -> HealthProbeError:
    return HealthProbeError(
        group=cast("str", verdict["group"]),
        backend=cast("str", verdict["backend"]),
        answered=cast("list[int]", verdict["answered"]),
        silent=cast("list[int]", verdict["silent"]),
        reason=cast("str", verdict["reason"]),
        found_by=cast("int", verdict["found_by"]),
    )
