"""Settings that decide whether the same step gives the same bits twice."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "NCCL_PROTO", "PYTHONHASHSEED")
"""Environment variables among them; read by libraries when they start, so not to be set late."""

WORKSPACES = (":4096:8", ":16:8")
"""Values of ``CUBLAS_WORKSPACE_CONFIG`` with which cuBLAS repeats itself."""

_FLAGS: Mapping[str, Callable[[], Any]] = {
    "use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "default_dtype": lambda: str(torch.get_default_dtype()),
}


def settings_here(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings of this process as text; ``unset`` for a variable that is not there."""
    found = {name: _text(read) for name, read in _FLAGS.items()}
    return found | {name: environment.get(name, "unset") for name in VARIABLES}


def lacking(settings: Mapping[str, str], *, is_cuda: bool, world_size: int) -> list[str]:
    """What keeps a step from giving the same bits twice, each as setting and remedy.

    Args:
        settings: As :func:`settings_here` returns them.
        is_cuda: Whether the rank trains on a GPU.
        world_size: How many ranks there are.
    """
    found = []
    if settings["use_deterministic_algorithms"] != "True" or settings["warn_only"] == "True":
        found.append("torch.use_deterministic_algorithms(True) was not called")
    if not is_cuda:
        return found
    if settings["cudnn.benchmark"] == "True":
        found.append("torch.backends.cudnn.benchmark is True and must be False")
    if settings["CUBLAS_WORKSPACE_CONFIG"] not in WORKSPACES:
        found.append(f"CUBLAS_WORKSPACE_CONFIG must be {' or '.join(WORKSPACES)}")
    if world_size > 1 and settings["NCCL_ALGO"] == "unset":
        found.append("NCCL_ALGO is not set, so NCCL may sum in another order next time")
    return found


def probe_sentence(
    *,
    rank: int,
    first: str,
    num_differing: int,
    num_compared: int,
    operators: Iterable[str],
    ways: Iterable[str],
    problem: str,
) -> str:
    """What came of running the first micro-batch of a rank again, twice.

    Args:
        rank: Global rank.
        first: What differed first; empty if nothing did.
        num_differing: Tensors that differed.
        num_compared: Tensors that were compared.
        operators: Operators of torch that have no deterministic form as they are set.
        ways: What :func:`lacking` found.
        problem: Why nothing was run again; empty if it was.
    """
    if problem:
        return f"Whether the first step repeats itself was not tried: {problem}."
    if not first:
        return (
            f"The first micro-batch was run again twice on rank {rank}: {num_compared} outputs and "
            "gradients had the same bits."
        )
    named = f" Without a deterministic form: {', '.join(operators)}." if operators else ""
    owed = "".join(f" {way[0].upper()}{way[1:]}." for way in ways)
    return (
        f"The first step does not repeat itself: run twice more on rank {rank}, {num_differing} of "
        f"{num_compared} outputs and gradients had other bits, first {first}.{named}"
        f"{owed or ' All settings are right, so look for what is drawn or kept elsewhere.'}"
    )


def _text(read: Callable[[], Any]) -> str:
    try:
        return str(read())
    except RuntimeError as error:
        # torch refuses to name a precision that was set in two ways at once.
        return f"unknown ({str(error).splitlines()[0][:80]})"
