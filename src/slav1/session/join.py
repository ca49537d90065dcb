"""Joining a run: rank 0 opens it, local rank 0 of each node starts the monitor."""

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from slav1.contract import Contract
from slav1.session.open_run import JOIN_LIMIT_S, RunSettings, monitor_config, open_run
from slav1.session.rendezvous import Rendezvous, store_of_group
from slav1.session.session import Session, SessionError
from slav1.session.start_monitor import MonitorStartError, RunningMonitor, start_monitor
from slav1.session.store_peers import StorePeers
from slav1.session.ticket import Ticket

__all__ = ["JOIN_LIMIT_S", "RunSettings", "join"]

STARTED_LIMIT_S = 1.0
"""How long a monitor that must be there already is looked for, in seconds: if it is not,
it has ended."""

_log = logging.getLogger("slav1")
_num_runs = 0


def join(
    settings: RunSettings, rendezvous: Rendezvous, environment: Mapping[str, str] = os.environ
) -> Session:
    """Opens or joins a watched run. Every rank of the job calls it once a run.

    The contract is rank 0's on all ranks.

    Args:
        settings: What this rank brings.
        rendezvous: How the ticket travels.
        environment: Environment variables, for the name of the run and of rank 0's host.

    Returns:
        The session of this rank, recording and, unless the contract says
        ``monitor.kind: off``, watched.

    Raises:
        SessionError: If the run could not be opened; raised on every rank.
    """
    global _num_runs
    num_earlier, _num_runs = _num_runs, _num_runs + 1
    if settings.rank == 0:
        if settings.origin:
            _log.info("%s", settings.origin)
        ticket, monitor = _open_for_all(settings, rendezvous, environment, num_earlier)
    else:
        ticket, monitor = _fetch(settings, rendezvous), None
    if ticket.error:
        raise SessionError(ticket.error)
    contract = Contract.from_dict(ticket.contract)
    watch = contract.monitor
    if settings.local_rank == 0 and settings.rank != 0 and watch.kind != "off":
        monitor = _start(settings, ticket, environment, watch.kind)
    session = Session(
        contract=contract,
        rank=settings.rank,
        run_folder=Path(ticket.run_folder),
        num_slots=watch.ring_slots,
        attempt=ticket.attempt,
        world_size=settings.world_size,
        spare=_spare(settings, ticket),
    )
    if monitor is not None:
        session.own(monitor)
    if watch.kind != "off":
        # Only on the other nodes may the rank that starts the monitor still be to come.
        is_started = monitor is not None or settings.node == 0
        try:
            session.connect(
                token=ticket.token,
                node=settings.node,
                local_rank=settings.local_rank,
                can_roll_back=settings.can_roll_back,
                limit_s=STARTED_LIMIT_S if is_started else settings.join_limit_s,
            )
        except BaseException:
            session.leave("not_joined")
            raise
    return session


def _spare(settings: RunSettings, ticket: Ticket) -> StorePeers | None:
    """How the ranks of this run meet where no monitor is; None if they can't."""
    store = store_of_group()
    if store is None:
        return None
    name = hashlib.sha256(ticket.token.encode()).hexdigest()[:16]
    return StorePeers(store, rank=settings.rank, world_size=settings.world_size, name=name)


def _open_for_all(
    settings: RunSettings,
    rendezvous: Rendezvous,
    environment: Mapping[str, str],
    num_earlier: int,
) -> tuple[Ticket, RunningMonitor | None]:
    """Rank 0 opens the run. Whatever goes wrong, the other ranks must not wait for it."""
    monitor: RunningMonitor | None = None
    try:
        ticket, monitor = open_run(settings, environment, num_earlier)
    except (OSError, MonitorStartError) as error:
        ticket = Ticket(error=str(error))
    except BaseException as error:
        ticket = Ticket(error=f"Rank 0 could not open the run: {type(error).__name__}: {error}")
        rendezvous.publish(ticket.to_bytes())
        raise
    rendezvous.publish(ticket.to_bytes())
    return ticket, monitor


def _fetch(settings: RunSettings, rendezvous: Rendezvous) -> Ticket:
    try:
        return Ticket.from_bytes(rendezvous.fetch(settings.join_limit_s))
    except (TimeoutError, ValueError) as error:
        raise SessionError(str(error)) from error


def _start(
    settings: RunSettings, ticket: Ticket, environment: Mapping[str, str], kind: str
) -> RunningMonitor:
    """Starts the monitor of a node that is not rank 0's."""
    try:
        return start_monitor(monitor_config(settings, ticket, environment), kind)
    except MonitorStartError as error:
        raise SessionError(f"Node {settings.node}: {error}") from error
