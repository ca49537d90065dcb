"""The one watched run of this process.

Shared by all ``SLAAccelerator`` objects of the process, as Accelerate shares its own
state among them: programs make several of them, and make them again.
"""

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import distributed as dist

from sla_accelerate._place import check_launch, place_of
from sla_accelerate._seeds import choose_early
from sla_accelerate._traps import check_group, check_sync, find_harmless
from sla_accelerate.actions import OnStop, TrainingStoppedError
from sla_accelerate.telemetry import LoopWatch
from slav1.seeds import Choice
from slav1.session import RunSettings, Session, join
from slav1.session.dying import dying_of
from slav1.session.rendezvous import job_rendezvous
from slav1.session.settings_source import Resolved
from slav1.startup.restarts import restart_hazard
from slav1.testing import planned_faults

JOIN_LIMIT_S = 1800.0
"""How long ranks may come to their first ``prepare`` one after another, in seconds."""


class _Shared:
    watch: LoopWatch | None = None
    settings: Resolved | None = None
    choice: Choice | None = None
    handled: BaseException | None = None
    """Exception that was being handled already when the run began; not its fault."""
    on_interrupt: Callable[[], None] | None = None
    """What is done if people break the run off; None for nothing."""


def seed_for(state: Any, settings: Resolved) -> Choice | None:
    """Collective if seeds are set. The global seed, which ranks set as soon as they know of each
    other; the open run keeps the one that it has.

    Args:
        state: Any ``accelerate.Accelerator``: knows ranks.
        settings: Contract and run directory.
    """
    if current() is not None:
        return _Shared.choice
    _Shared.choice = choose_early(
        settings.contract.seeds,
        rank=state.process_index,
        world_size=state.num_processes,
        job=str(settings.run_dir.absolute()),
    )
    return _Shared.choice


def current() -> LoopWatch | None:
    """The run that is being recorded; None if there is none."""
    watch = _Shared.watch
    return None if watch is None or watch.is_over else watch


def stopped() -> LoopWatch | None:
    """The last run, if the contract has stopped it."""
    watch = _Shared.watch
    return None if watch is None or watch.stopped_at is None else watch


def begin(
    state: Any, settings: Resolved, on_stop: OnStop, launcher: Mapping[str, str]
) -> LoopWatch:
    """Joins the run, on all ranks; returns the one that is open if there is one.

    Args:
        state: Any ``accelerate.Accelerator``: knows ranks and device.
        settings: Contract and run directory.
        on_stop: What a stop does.
        launcher: What the launcher said.

    Raises:
        ValueError: If the open run has another contract, or what the launcher said
            does not fit together.
        SessionError: If the run could not be opened; raised on every rank.
    """
    if (watch := current()) is not None:
        assert _Shared.settings is not None, "it was begun with some"
        if names := settings.differing(_Shared.settings):
            raise ValueError(
                f"This accelerator has another {' and another '.join(names)} than the run that "
                "is open: all SLAAccelerator objects of a process share one run. Call "
                "end_training() first, or give all the same."
            )
        return watch
    rank, world_size = state.process_index, state.num_processes
    check_launch(world_size, launcher)
    check_sync(state)
    check_group(state)
    place = place_of(rank, state.local_process_index, world_size, launcher)
    session = join(
        RunSettings(
            contract=settings.contract,
            run_dir=settings.run_dir,
            rank=rank,
            # Where the host starts ranks for a test, each of them is told that it is local rank 0.
            local_rank=rank if place.num_nodes == 1 else state.local_process_index,
            world_size=world_size,
            node=place.node,
            num_nodes=place.num_nodes,
            can_roll_back=True,
            join_limit_s=JOIN_LIMIT_S,
            origin=settings.origin,
        ),
        job_rendezvous(),
    )
    if rank == 0:
        _tell_oddities(session, state)
    watch = LoopWatch(
        session,
        on_stop=on_stop,
        faults=planned_faults(rank, world_size, attempt=session.attempt),
        keeps_batch=state.device.type == "cpu",
    )
    _Shared.watch, _Shared.settings, _Shared.handled = watch, settings, sys.exc_info()[1]
    return watch


def _tell_oddities(session: Session, state: Any) -> None:
    """What of this launch may fail later, or wastes something."""
    backend = dist.get_backend() if dist.is_initialized() else ""
    hazard = restart_hazard(os.environ, backend)
    for said in (*([hazard] if hazard else []), *find_harmless(state, os.environ)):
        session.note(said)


def when_interrupted(do: Callable[[], None]) -> None:
    """Keeps what is to be done if people break the open run off."""
    _Shared.on_interrupt = do
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def end(error: BaseException | None) -> None:
    """Leaves the run.

    Args:
        error: Exception that is being handled while the host ends the training; None
            if there is none.
    """
    watch, _Shared.watch = _Shared.watch, None
    on_interrupt, _Shared.on_interrupt = _Shared.on_interrupt, None
    if watch is None or watch.is_over:
        return
    if error is None or error is _Shared.handled or isinstance(error, TrainingStoppedError):
        watch.leave("finished")
        return
    watch.session.fail(error, watch.step + 1)
    if isinstance(error, KeyboardInterrupt) and on_interrupt is not None:
        on_interrupt()
    watch.leave(type(error).__name__)


def _at_exit() -> None:
    """A script that leaves the run open and ends by Ctrl-C."""
    on_interrupt, _Shared.on_interrupt = _Shared.on_interrupt, None
    if on_interrupt is not None and isinstance(dying_of(), KeyboardInterrupt):
        on_interrupt()
