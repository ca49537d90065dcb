"""Ranks of one node without processes: real blocks and sockets, held by the test."""

import os
import socket
from pathlib import Path
from typing import Any

from slav1.contract import Contract
from slav1.monitor.config import MonitorConfig
from slav1.monitor.gate import Connection
from slav1.monitor.node import NodeMonitor
from slav1.monitor.watched_rank import WatchedRank
from slav1.phase import Phase
from slav1.recorder import Block, Recorder, layout
from slav1.recorder.block import anonymous_file
from slav1.session import messages


def config_of(folder: Path, **others: Any) -> MonitorConfig:
    plain = {
        "contract": {"level": "L1"},
        "run_folder": str(folder),
        "attempt": 0,
        "token": "t" * 64,
        "node": 0,
        "num_nodes": 1,
        "world_size": 4,
        "parent_pid": os.getpid(),
        "server_public": "",
        "client_public": "",
        "client_secret": "",
    }
    return MonitorConfig(**{**plain, **others})


class Rank:
    """The trainer's end of one rank."""

    def __init__(self, rank: int, *, num_slots: int = 64, pid: int | None = None) -> None:
        self.block = Block.create(rank=rank, num_slots=num_slots)
        self.recorder = Recorder(self.block)
        self.stack_fd = anonymous_file("stacks")
        self.pid = os.getpid() if pid is None else pid
        self.socket, self.monitors_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(5)
        self.monitors_end.setblocking(False)
        self.hello = messages.Hello(
            token="t" * 64, rank=rank, local_rank=rank, pid=self.pid, thread=1, stack_signal=0
        )

    def fds(self) -> list[int]:
        """Descriptors as they arrive at the monitor: of its own."""
        return [os.dup(self.block.fd), os.dup(self.stack_fd)]

    def connection(self) -> Connection:
        return Connection(self.monitors_end, self.pid)

    def finish_step(self, step: int, loss: float = 1.0) -> None:
        self.recorder.enter(int(Phase.FORWARD))
        number = self.recorder.end_step(step, loss=loss, batch=step, flags=layout.HAS_LOSS)
        self.recorder.publish(number)

    def hear(self) -> messages.FromMonitor:
        return messages.decode_from_monitor(self.socket.recv(messages.MAX_BYTES))

    def close(self) -> None:
        self.socket.close()
        self.monitors_end.close()
        os.close(self.stack_fd)
        self.block.close()


class Node:
    """A node's monitor without its loop: what it sends to the coordinator is kept."""

    def __init__(
        self, folder: Path, *, config: dict[str, Any] | None = None, **clauses: Any
    ) -> None:
        self.sent: list[Any] = []
        self.contract = Contract.level("L1").override(**clauses)
        self.monitor = NodeMonitor(
            config_of(folder, **(config or {})), self.contract, self.sent.append
        )
        self.ranks: list[Rank] = []

    def join(self, rank: int, **settings: Any) -> tuple[Rank, WatchedRank]:
        trainer = Rank(rank, **settings)
        self.ranks.append(trainer)
        return trainer, self.monitor.join(trainer.hello, trainer.connection(), trainer.fds())

    def of_kind(self, kind: type) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]

    def close(self) -> None:
        self.monitor.close()
        for rank in self.ranks:
            rank.close()
