"""Where a rank runs, from what its launcher says."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """A rank's node."""

    node: int
    """Number of the node, from 0."""

    num_nodes: int
    """Nodes of the job."""


_RANKS_PER_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_OTHERS = (
    *("WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("SLURM_PROCID", "SLURM_NODEID", "SLURM_NNODES"),
)


def words_of_launcher(environment: Mapping[str, str], *, is_set_up: bool = False) -> dict[str, str]:
    """What the launcher said, from the environment.

    Args:
        environment: Of this process.
        is_set_up: Whether Accelerate is set up already. On a machine without a GPU it puts
            ``LOCAL_WORLD_SIZE=1`` where the launcher said nothing, so that word counts only
            if this process was started with it.
    """
    names = (*_RANKS_PER_NODE, *_OTHERS)
    words = {name: environment[name] for name in names if name in environment}
    is_doubtful = is_set_up and words.get("LOCAL_WORLD_SIZE") == "1"
    if is_doubtful and "LOCAL_WORLD_SIZE" not in _names_at_start():
        del words["LOCAL_WORLD_SIZE"]
    return words


def place_of(rank: int, local_rank: int, world_size: int, words: Mapping[str, str]) -> Place:
    """Tells a rank's node.

    Args:
        rank: Global rank.
        local_rank: Rank within the node.
        world_size: Ranks of the job.
        words: What ``torchrun``, Slurm or MPI say, in this order. If none of them says
            anything the job has one node.

    Raises:
        ValueError: If the number of ranks on a node contradicts the local rank.
    """
    if "GROUP_RANK" in words and "GROUP_WORLD_SIZE" in words:
        return Place(int(words["GROUP_RANK"]), int(words["GROUP_WORLD_SIZE"]))
    if words.get("SLURM_PROCID") == str(rank) and "SLURM_NODEID" in words:
        return Place(int(words["SLURM_NODEID"]), int(words.get("SLURM_NNODES", "1")))
    name = next((name for name in _RANKS_PER_NODE if name in words), None)
    if name is None:
        return Place(0, 1)
    per_node = int(words[name])
    if rank % per_node != local_rank:
        raise ValueError(
            f"{name}={per_node} can't be: rank {rank} of {world_size} has local rank "
            f"{local_rank}. Start the job with the number of ranks that each node has."
        )
    return Place(rank // per_node, -(-world_size // per_node))


def check_launch(world_size: int, words: Mapping[str, str]) -> None:
    """Refuses a job whose processes do not know of each other.

    Raises:
        ValueError: If a launcher started several processes and each of them would train
            alone, as rank 0 of 1.
    """
    num_started = int(words.get("WORLD_SIZE", "1"))
    if "LOCAL_RANK" in words and num_started > 1 and world_size == 1:
        raise ValueError(
            f"The launcher started {num_started} processes (WORLD_SIZE), but Accelerate made "
            "each of them rank 0 of 1: they would train side by side without ever "
            "exchanging a gradient. On a machine without a GPU set ACCELERATE_USE_CPU=true "
            "or pass cpu=True; with DeepSpeed pass InitProcessGroupKwargs(backend='gloo')."
        )


def _names_at_start() -> set[str]:
    """Names in the environment that this process, or the one that it was forked from, was
    started with; none where they can't be known."""
    try:
        content = Path("/proc/self/environ").read_bytes()
    except OSError:
        return set()
    return {entry.partition(b"=")[0].decode(errors="replace") for entry in content.split(b"\0")}
