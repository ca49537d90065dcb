"""What a monitor is told when it starts."""

import struct
from typing import IO, Any

import msgspec

_LENGTH = struct.Struct("=I")


class MonitorConfig(msgspec.Struct, kw_only=True):
    """Everything a monitor needs; comes over its standard input, so that no secret
    stands on a command line or in an environment."""

    contract: dict[str, Any]
    """The contract as ``Contract.to_dict`` gives it."""

    run_folder: str
    """Folder of this run; the coordinator writes the ledger there."""

    attempt: int
    """Counts the starts of this run, from 0."""

    is_restart: bool = False
    """Whether a launcher has started the run again by itself: how long a person takes for
    that is no recovery."""

    token: str
    """Secret of this run; a rank shows it when it joins."""

    node: int
    """Number of this node, from 0. Node 0 has the coordinator."""

    num_nodes: int
    """Nodes of the job."""

    world_size: int
    """Ranks of the job."""

    parent_pid: int
    """The process that started the monitor; without it and without ranks it ends."""

    server_public: str
    """CURVE public key of the coordinator, as Z85 text."""

    client_public: str
    """CURVE public key of the monitors of this job, as Z85 text."""

    client_secret: str
    """CURVE secret key that belongs to it."""

    server_secret: str = ""
    """CURVE secret key of the coordinator; only node 0 is told."""

    coordinator: list[str] = []
    """ZeroMQ addresses at which the coordinator may be reached; none on node 0, which
    opens it."""

    origin: str = ""
    """Where the contract comes from, in sentences; empty if from code."""

    host: str = "127.0.0.1"
    """Interface on which node 0 opens the coordinator."""


def write_config(stream: IO[bytes], config: MonitorConfig) -> None:
    """Writes a configuration with its length before it.

    The end of the stream would not do as its end: a process that another thread forks
    in this moment would hold the pipe open.
    """
    raw = msgspec.msgpack.encode(config)
    stream.write(_LENGTH.pack(len(raw)) + raw)
    stream.flush()


def read_config(stream: IO[bytes]) -> MonitorConfig:
    """Reads what :func:`write_config` wrote.

    Raises:
        EOFError: If the stream ended before.
    """
    head = stream.read(_LENGTH.size)
    raw = stream.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if not raw:
        raise EOFError("the process that started this monitor ended before it said what to do")
    return msgspec.msgpack.decode(raw, type=MonitorConfig)
