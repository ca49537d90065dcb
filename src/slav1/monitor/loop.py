"""The monitor's one loop: sockets, processes and time, in one thread."""

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import msgspec
import zmq

from slav1.contract import Contract
from slav1.coordinator import messages as job
from slav1.coordinator.coordinator import Coordinator
from slav1.coordinator.journal import Journal
from slav1.coordinator.run_ledger import RunLedger
from slav1.coordinator.say import say
from slav1.coordinator.transport import Dialer, KeyPair, Listener
from slav1.monitor.config import MonitorConfig
from slav1.monitor.gate import Connection, Gate
from slav1.monitor.node import NodeMonitor
from slav1.monitor.process import WatchedProcess
from slav1.session import messages as local

BUSY_TICK_S = 0.002
"""Pause between two looks while a decision or a survey is under way, in seconds."""

DISMISSAL_LIMIT_S = 3.0
"""How long a node without ranks waits for the coordinator's last word, in seconds."""

FIRST_RANK_LIMIT_S = 300.0
"""How long a monitor waits for its first rank, in seconds."""

_FLUSH_EVERY_S = 1.0


class MonitorLoop:
    """Runs one node's monitor, and on node 0 the coordinator beside it."""

    def __init__(self, config: MonitorConfig) -> None:
        """Opens all sockets.

        Raises:
            PortInUseError: If the contract names a port that is taken.
            OSError: If a monitor of this run is here already, or the run folder can't
                be written to.
        """
        contract = Contract.from_dict(config.contract)
        self._tick_s = contract.monitor.tick_s
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._listener: Listener | None = None
        self._ledger: RunLedger | None = None
        self._journal: Journal | None = None
        self._coordinator: Coordinator | None = None
        self._on_ready: dict[object, Callable[[], None]] = {}
        self._poller = zmq.Poller()
        self._parent = WatchedProcess(config.parent_pid)
        peers = KeyPair(config.client_public, config.client_secret)
        self.address = config.coordinator
        """ZeroMQ address of the coordinator."""
        if config.node == 0:
            keys = KeyPair(config.server_public, config.server_secret)
            self._listener = Listener(self._context, keys, peers.public)
            self.address = self._listener.open(config.host, contract.monitor.port)
            self._ledger = RunLedger(Path(config.run_folder) / "ledger.jsonl", say)
            self._journal = Journal(self._ledger, config.attempt)
            self._coordinator = Coordinator(
                contract,
                world_size=config.world_size,
                num_nodes=config.num_nodes,
                journal=self._journal,
                send=self._send_to_node,
            )
            self._watch(self._listener.gatekeeper, self._listener.admit)
            self._watch(self._listener.events, self._count_strangers)
            self._watch(self._listener.socket, self._hear_node)
        self._dialer = Dialer(
            self._context,
            node=config.node,
            address=self.address.replace("0.0.0.0", "127.0.0.1"),  # noqa: S104 - undone here
            keys=peers,
            server=config.server_public,
        )
        self._watch(self._dialer.socket, self._hear_coordinator)
        self._gate = Gate(config.token, config.node)
        self._watch(self._gate.socket.fileno(), self._open_gate)
        self._node = NodeMonitor(config, contract, self._dialer.send)
        self._callers: list[Connection] = []
        self._is_dismissed = False
        self._dialer.send(job.NodeHello(node=config.node))

    def run(self) -> None:
        """Watches until every rank has left and the last line is written."""
        started_s = monotonic()
        done_at_s: float | None = None
        flushed_s = started_s
        while not self._is_over(done_at_s):
            is_busy = self._node.is_busy or (self._coordinator and self._coordinator.is_deciding)
            self._wait(BUSY_TICK_S if is_busy else self._tick_s)
            now_s = monotonic()
            self._node.beat()
            self._node.on_tick(now_s)
            if self._coordinator is not None:
                self._coordinator.on_tick(now_s)
            is_alone = not self._node.present
            if is_alone and not self._node.ranks and not self._is_awaited(started_s):
                self._node.tell_done()
            if is_alone and (self._node.ranks or not self._is_awaited(started_s)):
                done_at_s = done_at_s or now_s
            if self._ledger is not None and now_s - flushed_s > _FLUSH_EVERY_S:
                flushed_s = now_s
                if not (self._coordinator and self._coordinator.is_finished):
                    self._ledger.flush()

    def close(self) -> None:
        """Closes everything; nothing stays behind."""
        for caller in self._callers:
            caller.close()
        self._node.close()
        self._gate.close()
        self._dialer.close()
        if self._listener is not None:
            self._listener.close()
        self._parent.close()
        # Closes what is left open too: a forgotten socket would make this wait for ever.
        self._context.destroy(linger=500)
        if self._ledger is not None:
            self._ledger.let_go()

    def _is_over(self, done_at_s: float | None) -> bool:
        if self._coordinator is not None and self._coordinator.is_finished:
            return True
        is_late = done_at_s is not None and monotonic() - done_at_s > DISMISSAL_LIMIT_S
        return self._is_dismissed or (is_late and self._coordinator is None)

    def _is_awaited(self, started_s: float) -> bool:
        """Whether a first rank may still come."""
        return self._parent.is_alive() and monotonic() - started_s < FIRST_RANK_LIMIT_S

    def _watch(self, what: object, on_ready: Callable[[], None]) -> None:
        self._on_ready[what] = on_ready
        self._poller.register(what, zmq.POLLIN)

    def _unwatch(self, what: object) -> None:
        if self._on_ready.pop(what, None) is not None:
            self._poller.unregister(what)

    def _wait(self, pause_s: float) -> None:
        for ready, _ in self._poller.poll(pause_s * 1000):
            on_ready = self._on_ready.get(ready)
            if on_ready is not None:
                on_ready()

    def _send_to_node(self, node: int, message: job.FromCoordinator) -> None:
        assert self._listener is not None
        with contextlib.suppress(zmq.ZMQError):
            # A node that is gone is noticed by its silence.
            self._listener.send(f"node-{node}".encode(), message)

    def _hear_node(self) -> None:
        assert self._listener is not None
        assert self._coordinator is not None
        identity, message = self._listener.receive()
        if not self._coordinator.is_finished:
            node = int(identity.decode().removeprefix("node-"))
            self._coordinator.on_message(node, message, monotonic())

    def _count_strangers(self) -> None:
        assert self._listener is not None
        assert self._coordinator is not None
        num_new = self._listener.count_strangers()
        if num_new and not self._coordinator.is_finished:
            self._coordinator.on_strangers(num_new)

    def _hear_coordinator(self) -> None:
        message = self._dialer.receive()
        self._is_dismissed = self._is_dismissed or isinstance(message, job.Dismissed)
        self._node.on_message(message)

    def _open_gate(self) -> None:
        caller = self._gate.accept()
        if caller is not None:
            self._callers.append(caller)
            self._watch(caller.socket.fileno(), lambda: self._hear_caller(caller))

    def _hear_caller(self, caller: Connection) -> None:
        """A caller's first message must be a hello that knows the run's secret."""
        self._unwatch(caller.socket.fileno())
        self._callers.remove(caller)
        try:
            hello, fds = caller.receive()
        except (msgspec.DecodeError, msgspec.ValidationError, BlockingIOError):
            hello, fds = None, []
        if not isinstance(hello, local.Hello) or not self._gate.is_ours(hello) or len(fds) != 2:
            say("A process that is not of this run knocked at the monitor; it was turned away.")
            caller.close()
            return
        try:
            rank = self._node.join(hello, caller, fds)
        except ValueError as error:
            caller.send(local.Refused(reason=str(error)))
            caller.close()
            return
        caller.send(local.Welcome())
        self._watch(caller.socket.fileno(), lambda: self._hear_rank(rank.rank))
        if rank.process.pidfd is not None:
            self._watch(rank.process.pidfd, lambda: self._bury(rank.rank))

    def _hear_rank(self, number: int) -> None:
        rank = self._node.ranks[number]
        try:
            message, fds = rank.connection.receive()
        except (msgspec.DecodeError, msgspec.ValidationError, socket.error):
            return
        assert not fds, "only a hello carries descriptors"
        if message is None:
            self._unwatch(rank.connection.socket.fileno())
            self._node.on_rank_gone(rank)
            return
        self._node.on_rank_message(rank, message)

    def _bury(self, number: int) -> None:
        rank = self._node.ranks[number]
        if rank.process.pidfd is not None:
            self._unwatch(rank.process.pidfd)
        self._node.on_rank_gone(rank)
