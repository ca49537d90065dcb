"""Ranks that the host would let train apart, by plugins that it can't use here."""

import sys
import warnings
from typing import Any

import torch
from accelerate.utils import (
    DeepSpeedPlugin,
    FullyShardedDataParallelPlugin,
    InitProcessGroupKwargs,
)
from torch import nn

from sla_accelerate import SLAAccelerator

warnings.filterwarnings("ignore")


def settings(kind: str) -> dict[str, Any]:
    """What the accelerator is given."""
    if kind == "no sync":
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
        return {"fsdp_plugin": plugin, "kwargs_handlers": [InitProcessGroupKwargs(backend="gloo")]}
    # It only tells models of transformers, which need not be installed, about ZeRO.
    DeepSpeedPlugin.set_deepspeed_weakref = lambda self: None
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
    return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=config)}


def main() -> None:
    """Comes up to its first step."""
    if sys.argv[1] == "two rank 0s":
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    accelerator = SLAAccelerator(**settings(sys.argv[1]))
    print("rank", accelerator.process_index, "of", accelerator.num_processes, flush=True)
    model = nn.Linear(2, 1)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    print("prepared", flush=True)


if __name__ == "__main__":
    main()
