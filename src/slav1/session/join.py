"""Joining a run: rank 0 opens it, local rank 0 of each node starts the monitor."""

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slav1.contract import Contract
from slav1.coordinator.run_ledger import is_taken
from slav1.coordinator.say import say
from slav1.coordinator.transport import KeyPair, new_keys
from slav1.monitor.config import MonitorConfig
from slav1.session.rendezvous import Rendezvous
from slav1.session.run_folder import RunDirectoryError, choose_run_id, open_run_folder
from slav1.session.session import Session, SessionError
from slav1.session.start_monitor import MonitorStartError, RunningMonitor, start_monitor

JOIN_LIMIT_S = 60.0
"""How long a rank waits for rank 0's ticket and for its node's monitor, in seconds."""

_num_runs = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a rank brings to a run."""

    contract: Contract
    """The contract in force."""

    run_dir: Path
    """Folder of all runs."""

    rank: int
    """Global rank."""

    local_rank: int
    """Rank within the node."""

    world_size: int
    """Ranks of the job."""

    node: int = 0
    """Number of this node."""

    num_nodes: int = 1
    """Nodes of the job."""

    join_limit_s: float = JOIN_LIMIT_S
    """How long this rank waits for rank 0's ticket and for its node's monitor, in
    seconds. Longer where the ranks may come at very different times."""


class _Ticket(msgspec.Struct, kw_only=True):
    """What rank 0 hands to the others."""

    error: str = ""
    run_folder: str = ""
    attempt: int = 0
    token: str = ""
    address: str = ""
    server_public: str = ""
    client_public: str = ""
    client_secret: str = ""


def join(
    settings: RunSettings, rendezvous: Rendezvous, environment: Mapping[str, str] = os.environ
) -> Session:
    """Opens or joins a watched run. Every rank of the job calls it once a run.

    Args:
        settings: What this rank brings.
        rendezvous: How the ticket travels.
        environment: Environment variables, for the name of the run.

    Returns:
        The session of this rank, recording and, unless the contract says
        ``monitor.kind: off``, watched.

    Raises:
        SessionError: If the run could not be opened; raised on every rank.
    """
    global _num_runs  # noqa: PLW0603 - counts the runs of this process
    num_earlier, _num_runs = _num_runs, _num_runs + 1
    monitor: RunningMonitor | None = None
    if settings.rank == 0:
        ticket, monitor = _open_run(settings, choose_run_id(environment, num_earlier))
        rendezvous.publish(msgspec.json.encode(ticket))
    else:
        try:
            raw = rendezvous.fetch(settings.join_limit_s)
        except TimeoutError as error:
            raise SessionError(str(error)) from error
        ticket = msgspec.json.decode(raw, type=_Ticket)
    if ticket.error:
        raise SessionError(ticket.error)
    if settings.local_rank == 0 and settings.rank != 0:
        monitor = _start(settings, _config(settings, ticket))
    session = Session(
        rank=settings.rank,
        run_folder=Path(ticket.run_folder),
        num_slots=settings.contract.monitor.ring_slots,
    )
    if monitor is not None:
        session.own(monitor)
    if settings.contract.monitor.kind != "off":
        session.connect(
            token=ticket.token,
            node=settings.node,
            local_rank=settings.local_rank,
            # Only on the other nodes may the rank that starts the monitor still be to come.
            limit_s=JOIN_LIMIT_S if monitor or settings.node == 0 else settings.join_limit_s,
        )
    return session


def _open_run(settings: RunSettings, run_id: str) -> tuple[_Ticket, RunningMonitor | None]:
    """Rank 0: makes folder, keys and monitor; an error goes to all ranks in the ticket."""
    try:
        folder, attempt, is_full = open_run_folder(settings.run_dir, run_id)
        if is_taken(folder / "ledger.jsonl"):
            reason = f"run {run_id} is being written by another job that still runs"
            raise RunDirectoryError(folder, reason)
    except RunDirectoryError as error:
        return _Ticket(error=str(error)), None
    if is_full:
        say(f"The disk under {folder} is full. Training goes on; the ledger waits in memory.")
    else:
        (folder / "contract.yaml").write_text(settings.contract.to_yaml())
    server, client = new_keys(), new_keys()
    ticket = _Ticket(
        run_folder=str(folder),
        attempt=attempt,
        token=secrets.token_hex(32),
        server_public=server.public,
        client_public=client.public,
        client_secret=client.secret,
    )
    if settings.contract.monitor.kind == "off":
        return ticket, None
    config = _config(settings, ticket, server)
    try:
        monitor = _start(settings, config)
    except (MonitorStartError, SessionError) as error:
        return _Ticket(error=str(error)), None
    ticket.address = _reachable(monitor.address, settings.num_nodes)
    return ticket, monitor


def _start(settings: RunSettings, config: MonitorConfig) -> RunningMonitor:
    try:
        return start_monitor(config, settings.contract.monitor.kind)
    except MonitorStartError as error:
        if settings.contract.monitor.kind == "process" and isinstance(error.__cause__, OSError):
            say(f"{error} Falling back to monitor.kind: thread, which is weaker.")
            return start_monitor(config, "thread")
        raise SessionError(str(error)) from error


def _config(settings: RunSettings, ticket: _Ticket, server: KeyPair | None = None) -> MonitorConfig:
    return MonitorConfig(
        contract=settings.contract.to_dict(),
        run_folder=ticket.run_folder,
        attempt=ticket.attempt,
        token=ticket.token,
        node=settings.node,
        num_nodes=settings.num_nodes,
        world_size=settings.world_size,
        parent_pid=os.getpid(),
        server_public=ticket.server_public,
        client_public=ticket.client_public,
        client_secret=ticket.client_secret,
        server_secret=server.secret if server else "",
        coordinator=ticket.address,
        host="127.0.0.1" if settings.num_nodes == 1 else "0.0.0.0",  # noqa: S104 - CURVE keys
    )


def _reachable(address: str, num_nodes: int) -> str:
    if num_nodes == 1:
        return address
    port = address.rsplit(":", 1)[1]
    return f"tcp://{socket.gethostbyname(socket.getfqdn())}:{port}"
