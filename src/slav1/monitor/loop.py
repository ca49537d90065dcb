"""The monitor's one loop: sockets, processes and time, in one thread."""

from contextlib import ExitStack
from functools import partial
from time import monotonic

import zmq

from slav1.contract import Contract
from slav1.coordinator import messages as job
from slav1.coordinator.dialer import Dialer, reachable
from slav1.coordinator.membership import PAUSE_S
from slav1.coordinator.say import say
from slav1.coordinator.transport import KeyPair
from slav1.monitor.config import MonitorConfig
from slav1.monitor.doorway import Doorway
from slav1.monitor.events import Events, Mishaps
from slav1.monitor.gate import Connection, Gate, close_all
from slav1.monitor.job_end import JobEnd
from slav1.monitor.lookout import PULSE_EVERY_S
from slav1.monitor.node import NodeMonitor
from slav1.monitor.process import WatchedProcess
from slav1.monitor.watched_rank import WatchedRank
from slav1.session import messages as local

BUSY_TICK_S = 0.002
"""Pause between two close looks while a decision or a survey is under way, in seconds."""

LONGEST_TICK_S = PULSE_EVERY_S
"""Longest pause between two looks while no step ends, in seconds: it doubles up to that, so
that a job of slow steps costs its host less."""

REACH_LIMIT_S = 10.0
"""How long a node tries to reach the coordinator when it starts, in seconds."""

DISMISSAL_LIMIT_S = 3.0
"""How long a node without ranks waits for the coordinator's last word, in seconds."""

FIRST_RANK_LIMIT_S = 300.0
"""How long a monitor waits for its first rank, in seconds."""

_MAX_MESSAGES = 64


class MonitorLoop:
    """Runs one node's monitor, and on node 0 the coordinator beside it."""

    def __init__(self, config: MonitorConfig) -> None:
        """Opens all sockets; none stays open if that fails.

        Raises:
            PortInUseError: If the contract names a port that is taken.
            UnreachableError: If the coordinator does not answer this node.
            OSError: If another job writes this run, a monitor of this run is here
                already, or a socket can't be opened.
        """
        self._resources = ExitStack()
        try:
            self._open(config, Contract.from_dict(config.contract))
        except BaseException:
            self._resources.close()
            raise

    def _open(self, config: MonitorConfig, contract: Contract) -> None:
        self._tick_s = self._shortest_tick_s = contract.monitor.tick_s
        self._mishaps = Mishaps(self._tell)
        self._events = Events(self._mishaps)
        self._job_end: JobEnd | None = None
        self._parent = WatchedProcess(config.parent_pid)
        self._resources.callback(self._parent.close)
        self._gate = Gate(config.token, config.node)
        self._resources.callback(self._gate.close)
        self._doorway = Doorway(self._gate, self._forget)
        self._resources.callback(self._doorway.close)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        if config.node == 0:
            # Let go of last: whoever takes the run next can open the port at once.
            self._resources.callback(self._let_go)
        # Closes what is left open too: a forgotten socket would make this wait for ever.
        self._resources.callback(context.destroy, linger=500)
        self._dialer = self._dial(context, config, contract)
        self._resources.callback(self._dialer.close)
        self._node = NodeMonitor(config, contract, self._dialer.send)
        self._resources.callback(self._node.close)
        self._events.watch(self._dialer.socket, self._hear_coordinator)
        self._events.watch(self._gate.socket.fileno(), self._open_gate)
        self._is_dismissed = False
        self._done_at_s: float | None = None
        self._started_s = self._woke_at_s = self._next_tick_s = monotonic()
        self._dialer.send(job.NodeHello(node=config.node))

    def _dial(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        config: MonitorConfig,
        contract: Contract,
    ) -> Dialer:
        keys = KeyPair(config.client_public, config.client_secret)
        if config.node == 0:
            self._job_end = JobEnd(context, config, contract)
            self._resources.callback(self._job_end.close)
            self._job_end.watch(self._events)
            self.address = self._job_end.address
            """ZeroMQ address of the coordinator."""
            address = self.address.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - undone here
        else:
            address = self.address = reachable(
                context,
                config.coordinator,
                keys=keys,
                server=config.server_public,
                limit_s=REACH_LIMIT_S,
            )
        return Dialer(
            context, node=config.node, address=address, keys=keys, server=config.server_public
        )

    def run(self) -> None:
        """Watches until every rank has left and the last line is written."""
        while not self._is_over():
            self._events.wait(self._pause_s())
            self._mishaps.run(self._let_time_pass)

    def close(self) -> None:
        """Closes everything; nothing stays behind."""
        self._resources.close()

    def _let_go(self) -> None:
        if self._job_end is not None:
            self._job_end.let_go()

    def _tell(self, message: str) -> None:
        if self._job_end is None or self._job_end.is_finished:
            say(message)
        else:
            self._job_end.tell(message)

    def _pause_s(self) -> float:
        pause_s = self._next_tick_s - monotonic()
        is_busy = self._node.is_busy or (self._job_end is not None and self._job_end.is_busy)
        return min(pause_s, BUSY_TICK_S) if is_busy else pause_s

    def _let_time_pass(self) -> None:
        now_s = monotonic()
        if now_s - self._woke_at_s > PAUSE_S:
            self._node.on_pause(now_s)
        self._woke_at_s = now_s
        if now_s < self._next_tick_s:
            self._node.look_closely(now_s)
            if self._job_end is not None:
                self._job_end.look_closely(now_s)
            return
        # Before anything that may fail: a tick that fails must not come again at once.
        self._next_tick_s = now_s + self._tick_s
        self._doorway.send_away_silent(now_s)
        self._count_strangers()
        has_news = self._node.on_tick(now_s)
        longest_s = max(self._shortest_tick_s, LONGEST_TICK_S)
        self._tick_s = self._shortest_tick_s if has_news else min(2 * self._tick_s, longest_s)
        self._next_tick_s = now_s + self._tick_s
        if self._job_end is not None:
            self._job_end.on_tick(now_s)
        if not self._node.present and (self._node.ranks or not self._is_awaited(now_s)):
            self._node.tell_done()
            self._done_at_s = self._done_at_s or now_s

    def _is_over(self) -> bool:
        if self._job_end is not None:
            return self._job_end.is_finished
        is_late = self._done_at_s is not None and monotonic() - self._done_at_s > DISMISSAL_LIMIT_S
        return self._is_dismissed or is_late

    def _is_awaited(self, now_s: float) -> bool:
        """Whether a first rank may still come."""
        return self._parent.is_alive() and now_s - self._started_s < FIRST_RANK_LIMIT_S

    def _hear_coordinator(self) -> None:
        for _ in range(_MAX_MESSAGES):
            message = self._dialer.receive()
            if message is None:
                return
            self._is_dismissed = self._is_dismissed or isinstance(message, job.Dismissed)
            self._node.on_message(message)

    def _open_gate(self) -> None:
        for caller in self._doorway.accept(monotonic()):
            self._events.watch(caller.socket.fileno(), partial(self._hear_caller, caller))

    def _hear_caller(self, caller: Connection) -> None:
        """A caller's first message must be a hello that knows the run's secret."""
        heard = self._doorway.hear(caller)
        if heard is None:
            return
        hello, fds = heard
        self._forget(caller)
        try:
            rank = self._node.join(hello, caller, fds)
        except (ValueError, OSError) as error:
            close_all(fds)
            caller.send(local.Refused(reason=str(error)))
            caller.close()
            return
        caller.send(local.Welcome())
        self._events.watch(caller.socket.fileno(), partial(self._hear_rank, rank))
        if rank.process.pidfd is not None:
            self._events.watch(rank.process.pidfd, partial(self._bury, rank))

    def _hear_rank(self, rank: WatchedRank) -> None:
        try:
            message, fds = rank.connection.receive()
        except BlockingIOError:
            return
        # Only a hello carries descriptors.
        close_all(fds)
        if message is None:
            self._forget(rank.connection)
            self._node.on_rank_gone(rank)
            return
        self._node.on_rank_message(rank, message)

    def _bury(self, rank: WatchedRank) -> None:
        self._events.unwatch(rank.process.pidfd)
        self._node.on_rank_gone(rank)

    def _forget(self, caller: Connection) -> None:
        self._events.unwatch(caller.socket.fileno())

    def _count_strangers(self) -> None:
        num_new, self._doorway.num_turned_away = self._doorway.num_turned_away, 0
        self._node.on_strangers(num_new)
