"""What Accelerate has to be told for each way to spread a model, on processors or on GPUs."""

from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import (
    DeepSpeedPlugin,
    DistributedType,
    FullyShardedDataParallelPlugin,
    InitProcessGroupKwargs,
)

HAS_GPUS = torch.cuda.is_available()


def settings_for(family: str) -> dict[str, Any]:
    """Arguments for an ``Accelerator``: of ``ddp``, ``fsdp`` (GPUs only), ``fsdp2``,
    ``fsdp2-full``, ``zero1``, ``zero2``, ``zero3``, ``zero2-bf16``."""
    if family.startswith("fsdp"):
        return {"fsdp_plugin": _fsdp(family)}
    if family.startswith("zero"):
        return _zero(family)
    return {"cpu": not HAS_GPUS}


def _fsdp(family: str) -> FullyShardedDataParallelPlugin:
    if not HAS_GPUS:
        assert family != "fsdp", "the first generation needs GPUs"
        # Accelerate shards on GPUs only; told that these are some, it does so anywhere.
        PartialState(cpu=True)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    return FullyShardedDataParallelPlugin(
        fsdp_version=1 if family == "fsdp" else 2,
        state_dict_type="FULL_STATE_DICT" if family == "fsdp2-full" else "SHARDED_STATE_DICT",
        auto_wrap_policy="no_wrap",
        # Else an optimizer that was made before knows parameters that are none of the model.
        use_orig_params=True if family == "fsdp" else None,
    )


def _zero(family: str) -> dict[str, Any]:
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # It only tells models of transformers, which need not be installed, about ZeRO.
    DeepSpeedPlugin.set_deepspeed_weakref = lambda self: None
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": int(family[4])},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    if family.endswith("bf16"):
        # The only stages and type in which an engine updates with gradients that are not finite.
        settings["bf16"] = {"enabled": True, "check_grad_overflow": False}
    how: dict[str, Any] = {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=settings)}
    if not HAS_GPUS:
        how["kwargs_handlers"] = [InitProcessGroupKwargs(backend="gloo")]
    return how
