"""What only the monitor beside rank 0 has: the coordinator, its port and its ledger."""

from pathlib import Path
from time import monotonic

import zmq

from slav1.contract import Contract
from slav1.coordinator.coordinator import Coordinator
from slav1.coordinator.journal import Journal
from slav1.coordinator.recovery import earlier_fault
from slav1.coordinator.rollbacks import earlier_rollbacks
from slav1.coordinator.run_ledger import RunLedger
from slav1.coordinator.say import say
from slav1.coordinator.transport import KeyPair, Listener
from slav1.monitor.config import MonitorConfig
from slav1.monitor.events import Events
from slav1.session.run_folder import save_contract

FLUSH_EVERY_S = 1.0
"""Pause between two tries to write what a full disk refused, in seconds."""

_MAX_MESSAGES = 256


class JobEnd:
    """Opens the coordinator's port, hears the nodes, and writes the run's files."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", config: MonitorConfig, contract: Contract
    ) -> None:
        """Opens port and ledger.

        Raises:
            PortInUseError: If the contract names a port that is taken.
            CannotListenError: If the port can't be opened.
            RunTakenError: If another job that still runs writes into the run folder.
        """
        keys = KeyPair(config.server_public, config.server_secret)
        self._folder = Path(config.run_folder)
        self._contract = contract
        self._is_contract_written = False
        self._flushed_s = monotonic()
        self._listener = Listener(context, keys, config.client_public)
        try:
            self.address = self._listener.open(config.host, contract.monitor.port)
            """ZeroMQ address of the coordinator."""
            self._ledger = RunLedger(self._folder / "ledger.jsonl", say)
        except OSError:
            self._listener.close()
            raise
        self._write_contract()
        self._coordinator = Coordinator(
            contract,
            world_size=config.world_size,
            num_nodes=config.num_nodes,
            journal=Journal(self._ledger, config.attempt),
            send=self._listener.send,
            earlier_rollbacks=earlier_rollbacks(self._folder / "ledger.jsonl"),
            earlier_fault=(
                earlier_fault(self._folder / "ledger.jsonl") if config.is_restart else None
            ),
        )

    @property
    def is_finished(self) -> bool:
        """Whether the last line is written."""
        return self._coordinator.is_finished

    def watch(self, events: Events) -> None:
        """Lets the sockets be watched."""
        events.watch(self._listener.gatekeeper, self._listener.admit)
        events.watch(self._listener.events, self._count_strangers)
        events.watch(self._listener.socket, self._hear_nodes)

    def on_tick(self, now_s: float) -> None:
        """Time passes."""
        self._coordinator.on_tick(now_s)
        if now_s - self._flushed_s > FLUSH_EVERY_S and not self.is_finished:
            self._flushed_s = now_s
            self._ledger.flush()
            self._write_contract()

    def tell(self, message: str) -> None:
        """Writes down that something went wrong in this monitor."""
        self._coordinator.on_trouble(message)

    def close(self) -> None:
        """Closes the port; the ledger is closed by the coordinator's last line."""
        self._listener.close()

    def let_go(self) -> None:
        """Lets another job have the run, when port and sockets are closed."""
        self._ledger.close()
        self._ledger.let_go()

    def _hear_nodes(self) -> None:
        for _ in range(_MAX_MESSAGES):
            heard = self._listener.receive()
            if heard is None:
                return
            self._coordinator.on_message(*heard, monotonic())

    def _count_strangers(self) -> None:
        self._coordinator.on_strangers(self._listener.count_strangers())

    def _write_contract(self) -> None:
        """Writes the contract as it is in force; a full disk is tried again later."""
        # If it fails, the ledger, which lies in the same folder, has told of it.
        self._is_contract_written = self._is_contract_written or save_contract(
            self._folder, self._contract
        )
