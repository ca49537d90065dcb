"""What a ``transformers.Trainer`` has to be told for each way to spread a model, on processors or
on GPUs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from trainers import settings
from transformers import TrainerCallback, TrainingArguments

HAS_GPUS = torch.cuda.is_available()


def settings_for(family: str, folder: Path, **more: Any) -> TrainingArguments:
    """Arguments of a trainer: of ``ddp``, ``fsdp`` (GPUs only), ``fsdp2``, ``fsdp2+clip``,
    ``zero1`` to ``zero3``."""
    kind, _, clips = family.partition("+")
    more["max_grad_norm"] = 1.0 if clips else 0.0
    more["use_cpu"] = not HAS_GPUS
    if kind.startswith("fsdp"):
        assert HAS_GPUS or kind != "fsdp", "the first generation needs GPUs"
        version = 1 if kind == "fsdp" else 2
        wrap = {"version": version, "transformer_layer_cls_to_wrap": ["GPT2Block"]}
        more |= {"fsdp": "full_shard auto_wrap", "fsdp_config": wrap}
    if kind.startswith("zero"):
        import deepspeed.ops

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        more |= {"deepspeed": _zero(int(kind[4]))}
        more |= {} if HAS_GPUS else {"ddp_backend": "gloo"}
    return settings(folder, **more)


@contextlib.contextmanager
def spread(family: str) -> Iterator[None]:
    """Around the making of a trainer."""
    if family.startswith("fsdp2") and not HAS_GPUS:
        # Accelerate shards on GPUs only; told that these are some, it does so anywhere.
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    yield


def noting(starts: list[int]) -> TrainerCallback:
    """Notes where training begins."""

    class Notes(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            starts.append(state.global_step)

    return Notes()


def _zero(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
