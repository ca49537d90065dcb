"""Rank 0 opens a run: its folder, its keys, its monitor."""

import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from slav1.contract import Contract
from slav1.coordinator.run_ledger import RunTakenError, is_taken
from slav1.coordinator.transport import KeyPair, bracketed, new_keys
from slav1.monitor.config import MonitorConfig
from slav1.session.address import host_to_bind, hosts_to_try
from slav1.session.run_folder import choose_run_id, open_run_folder, save_contract
from slav1.session.start_monitor import RunningMonitor, start_monitor
from slav1.session.ticket import Ticket
from slav1.session.unwatched import NoMonitor

JOIN_LIMIT_S = 60.0
"""How long a rank waits for rank 0's ticket and for its node's monitor, in seconds."""

FREE_LIMIT_S = 3.0
"""How long an earlier run's monitor may take to write its last line, in seconds."""

RESTART_FREE_LIMIT_S = 15.0
"""The same after a restart by an elastic launcher, in seconds: the monitor of the attempt
before may still wait for another node's last word."""


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

    can_roll_back: bool = False
    """Whether the host can go back to a checkpoint while it runs: it carries out
    ``Action.ROLLBACK``. Counts if it is so on all ranks."""

    join_limit_s: float = JOIN_LIMIT_S
    """How long this rank waits for rank 0's ticket and for its node's monitor, in
    seconds. Longer where the ranks may come at very different times."""

    origin: str = ""
    """Where contract and run directory come from, in sentences, as far as they are not the
    script's arguments. Rank 0's stands in the ledger."""


def open_run(
    settings: RunSettings, environment: Mapping[str, str], num_earlier: int
) -> tuple[Ticket, RunningMonitor]:
    """Makes everything that a run needs before its ranks can join it.

    Args:
        settings: What rank 0 brings.
        environment: Environment variables of rank 0.
        num_earlier: Runs this process had before.

    Returns:
        What the other ranks need, and the monitor.

    Raises:
        RunDirectoryError: If the run directory can't be used.
        RunTakenError: If another job that still runs writes this run.
        MonitorStartError: If the monitor can't start.
    """
    contract = settings.contract
    num_restarts = restart_count(environment)
    run_id = choose_run_id(environment, num_earlier)
    limit_s = RESTART_FREE_LIMIT_S if num_restarts else FREE_LIMIT_S
    _await_free(settings.run_dir.absolute() / run_id / "ledger.jsonl", limit_s)
    folder, attempt = open_run_folder(settings.run_dir, run_id, num_restarts=num_restarts)
    server, client = new_keys(), new_keys()
    ticket = Ticket(
        run_folder=str(folder),
        attempt=attempt,
        contract=contract.to_dict(),
        token=secrets.token_hex(32),
        server_public=server.public,
        client_public=client.public,
        client_secret=client.secret,
    )
    if contract.monitor.kind == "off":
        save_contract(folder, contract)
        return ticket, NoMonitor(folder, attempt, contract, settings.origin)
    host = host_to_bind(settings.num_nodes, environment)
    config = monitor_config(settings, ticket, environment, server=server, host=host)
    monitor = start_monitor(config, contract.monitor.kind)
    ticket.port = int(monitor.address.rsplit(":", 1)[1])
    ticket.hosts = hosts_to_try(host, environment)
    return ticket, monitor


def monitor_config(
    settings: RunSettings,
    ticket: Ticket,
    environment: Mapping[str, str],
    *,
    server: KeyPair | None = None,
    host: str = "",
) -> MonitorConfig:
    """Says what the monitor of this rank's node is told.

    Args:
        settings: What this rank brings.
        ticket: What rank 0 hands out.
        environment: ``MASTER_ADDR`` is how this node reaches rank 0's host.
        server: Keys of the coordinator; only beside rank 0.
        host: Interface on which it listens; only beside rank 0.
    """
    master = environment.get("MASTER_ADDR", "")
    hosts = dict.fromkeys([*ticket.hosts, *filter(None, [master])])
    return MonitorConfig(
        contract=ticket.contract,
        run_folder=ticket.run_folder,
        attempt=ticket.attempt,
        is_restart=restart_count(environment) > 0,
        token=ticket.token,
        node=settings.node,
        num_nodes=settings.num_nodes,
        world_size=settings.world_size,
        parent_pid=os.getpid(),
        server_public=ticket.server_public,
        client_public=ticket.client_public,
        client_secret=ticket.client_secret,
        server_secret=server.secret if server else "",
        coordinator=[f"tcp://{bracketed(name)}:{ticket.port}" for name in hosts],
        host=host,
        origin=settings.origin,
    )


def restart_count(environment: Mapping[str, str]) -> int:
    """How often an elastic launcher has restarted this job; 0 without one."""
    given = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    return int(given) if given.isdigit() else 0


def _await_free(ledger: Path, limit_s: float) -> None:
    """Lets the monitor of an earlier start of this run write its last line."""
    pause = threading.Event()
    deadline_s = monotonic() + limit_s
    while is_taken(ledger):
        if monotonic() > deadline_s:
            raise RunTakenError(ledger)
        pause.wait(0.05)
