"""What the host does to a job without a word, found before its first step."""

import os
from collections.abc import Mapping
from typing import Any

import psutil
from torch import distributed as dist

_PLUGINS = {
    "ACCELERATE_USE_FSDP": ("FSDP", "FSDP"),
    "ACCELERATE_USE_DEEPSPEED": ("DEEPSPEED", "DeepSpeed"),
    "ACCELERATE_USE_MEGATRON_LM": ("MEGATRON_LM", "Megatron-LM"),
}
"""What says that a plugin was given, how the host names its mode, and how people do."""

_WORDS_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


def check_sync(state: Any) -> None:
    """Refuses ranks that know of each other and would not exchange a gradient.

    Args:
        state: Any ``accelerate.Accelerator``.

    Raises:
        ValueError: On all ranks, if they are such.
    """
    if state.num_processes > 1 and mode_of(state) == "NO":
        raise ValueError(
            f"{state.num_processes} ranks know of each other, but Accelerate runs in mode NO: it "
            "wraps no model, so they would train apart without ever exchanging a gradient. "
            "It does so where its backend is not one of the machine's. On a machine without a "
            "GPU set ACCELERATE_USE_CPU=true or pass cpu=True, for DDP; it can't shard there."
        )


def check_group(state: Any) -> None:
    """Refuses ranks that knew of each other, and can't reach each other any more.

    Args:
        state: Any ``accelerate.Accelerator``.

    Raises:
        ValueError: On all ranks, if they are such.
    """
    if state.num_processes > 1 and not dist.is_initialized():
        raise ValueError(
            f"Accelerate knows of {state.num_processes} ranks, but there is no process group: "
            "end_training() of an earlier accelerator has ended it, and Accelerate makes no "
            "second one. Call end_training() once, after the last training of this process."
        )


def find_harmless(state: Any, environment: Mapping[str, str]) -> list[str]:
    """Tells what wastes something and lets training be right all the same.

    Args:
        state: Any ``accelerate.Accelerator``.
        environment: Of this process.

    Returns:
        Each in a sentence or two.
    """
    mode = mode_of(state)
    said = [
        f"A plugin for {name} was given, and Accelerate ignores it here (mode {mode}): each rank "
        f"holds the whole model. {name} needs GPUs and a launcher that says so."
        for variable, (wanted, name) in _PLUGINS.items()
        if environment.get(variable, "false").lower() == "true" and mode != wanted
    ]
    if state.num_processes == 1 and is_one_of_several(environment, _environment_of_parent()):
        said.append(
            "accelerate launch was told to start several processes, and has started this one "
            "alone, which trains on all of the data. On a machine without a GPU start them by "
            "ACCELERATE_USE_CPU=true torchrun --nproc-per-node N, or give --mpirun_hostfile."
        )
    return said


def is_one_of_several(environment: Mapping[str, str], above: Mapping[str, str]) -> bool:
    """Whether Accelerate's launcher meant to start more processes than this one.

    Args:
        environment: Of this process.
        above: Of the process that started it. The launcher adds an address to meet at if it is
            told to start several.
    """
    is_launched = "ACCELERATE_MIXED_PRECISION" in environment.keys() - above.keys()
    is_to_meet = "MASTER_ADDR" in environment.keys() - above.keys()
    return is_launched and is_to_meet and not any(name in environment for name in _WORDS_OF_RANKS)


def mode_of(state: Any) -> str:
    """The host's name of the way it trains in."""
    return str(state.distributed_type).rpartition(".")[2]


def _environment_of_parent() -> Mapping[str, str]:
    """Empty where it can't be read; then our own has to do, and says nothing."""
    try:
        parent = psutil.Process().parent()
        return dict(os.environ) if parent is None else parent.environ()
    except psutil.Error:
        return dict(os.environ)
