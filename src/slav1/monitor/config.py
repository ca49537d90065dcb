"""What a monitor is told when it starts."""

from typing import Any

import msgspec


class MonitorConfig(msgspec.Struct, kw_only=True):
    """Everything a monitor needs; comes over its standard input, so that no secret
    stands on a command line or in an environment."""

    contract: dict[str, Any]
    """The contract as ``Contract.to_dict`` gives it."""

    run_folder: str
    """Folder of this run; the coordinator writes the ledger there."""

    attempt: int
    """Counts the starts of this run, from 0."""

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

    coordinator: str = ""
    """ZeroMQ address of the coordinator; empty on node 0, which opens it."""

    host: str = "127.0.0.1"
    """Interface on which node 0 opens the coordinator."""
