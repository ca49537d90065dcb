"""Where a rank runs, from what its launcher says."""

from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A rank's node."""

    node: int
    """Number of the node, from 0."""

    num_nodes: int
    """Nodes of the job."""


_RANKS_PER_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def place_of(rank: int, world_size: int, environment: Mapping[str, str]) -> Place:
    """Tells a rank's node.

    Args:
        rank: Global rank.
        world_size: Ranks of the job.
        environment: Environment variables: those of ``torchrun``, Slurm or MPI, in this
            order. Without any of them the job has one node.
    """
    if "GROUP_RANK" in environment and "GROUP_WORLD_SIZE" in environment:
        return Place(int(environment["GROUP_RANK"]), int(environment["GROUP_WORLD_SIZE"]))
    if environment.get("SLURM_PROCID") == str(rank) and "SLURM_NODEID" in environment:
        return Place(int(environment["SLURM_NODEID"]), int(environment.get("SLURM_NNODES", 1)))
    per_node = next((int(environment[n]) for n in _RANKS_PER_NODE if n in environment), world_size)
    return Place(rank // per_node, -(-world_size // per_node))


def check_launch(world_size: int, environment: Mapping[str, str]) -> None:
    """Refuses a job whose processes do not know of each other.

    Raises:
        ValueError: If a launcher started several processes and each of them would train
            alone, as rank 0 of 1.
    """
    num_started = int(environment.get("WORLD_SIZE", 1))
    if "LOCAL_RANK" in environment and num_started > 1 and world_size == 1:
        raise ValueError(
            f"The launcher started {num_started} processes (WORLD_SIZE), but Accelerate made "
            "each of them rank 0 of 1: they would train side by side without ever "
            "exchanging a gradient. On a machine without a GPU set ACCELERATE_USE_CPU=true "
            "or pass cpu=True."
        )
