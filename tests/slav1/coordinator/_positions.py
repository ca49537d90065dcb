"""Where ranks are, made by hand: stacks as real trainings have them, innermost first."""

from typing import Any

from slav1.coordinator.messages import Position
from slav1.phase import Phase
from slav1.sample import Pulse

SITE = "/env/lib/python3.11/site-packages"
ALL_REDUCE = f"{SITE}/torch/distributed/distributed_c10d.py:3252 all_reduce"
BROADCAST = f"{SITE}/torch/distributed/distributed_c10d.py:3151 broadcast"
BARRIER = f"{SITE}/torch/distributed/distributed_c10d.py:5356 barrier"
WRAPPER = f"{SITE}/torch/distributed/c10d_logger.py:83 wrapper"
LOOP = f"{SITE}/lightning/pytorch/loops/fit_loop.py:217 run"
FIT = (f"{SITE}/sla_lightning/actions.py:37 drive", "/home/me/train.py:90 main")

GRADIENT_SYNC = (
    f"{SITE}/torch/autograd/graph.py:979 _engine_run_backward",
    f"{SITE}/torch/autograd/__init__.py:395 backward",
    f"{SITE}/torch/_tensor.py:623 backward",
    f"{SITE}/lightning/pytorch/core/module.py:1137 backward",
    LOOP,
    *FIT,
)
"""Waiting for the peers' gradients, or still computing its own."""

STEP_BROADCAST = (
    BROADCAST,
    WRAPPER,
    f"{SITE}/lightning/pytorch/loops/training_epoch_loop.py:265 _broadcast_sigterm_tensor",
    LOOP,
    *FIT,
)
"""What the host does on every rank before every step."""

LONELY_HOOK = (ALL_REDUCE, WRAPPER, "/home/me/hooks.py:7 on_train_batch_end", LOOP, *FIT)
"""A collective that the user's own callback calls."""

LAST_BARRIER = (BARRIER, WRAPPER, f"{SITE}/lightning/pytorch/strategies/ddp.py:303 barrier", LOOP)
SAVE = (
    *LAST_BARRIER[:3],
    f"{SITE}/lightning/pytorch/trainer/trainer.py:1465 save_checkpoint",
    "/home/me/hooks.py:9 on_validation_end",
    LOOP,
    *FIT,
)
"""In the barrier at the end of a save."""

EPOCH_END = (
    ALL_REDUCE,
    f"{SITE}/lightning/pytorch/trainer/connectors/logger_connector/result.py:5 compute",
    f"{SITE}/lightning/pytorch/loops/fit_loop.py:480 on_advance_end",
    LOOP,
    *FIT,
)
"""After the last batch of an epoch."""

SLEEP = ("/home/me/train.py:12 training_step", LOOP, *FIT)
COMPILER = (f"{SITE}/torch/_inductor/compile_fx.py:700 compile_fx", *SLEEP)
LOADER = (
    "/usr/lib/python3.11/selectors.py:415 select",
    f"{SITE}/torch/utils/data/dataloader.py:1251 _try_get_data",
    LOOP,
    *FIT,
)
TORCH_SAVE = (
    "/home/me/model.py:8 __getstate__",
    f"{SITE}/torch/serialization.py:1250 _save",
    "/home/me/hooks.py:5 on_train_batch_end",
    LOOP,
    *FIT,
)
STORAGE = (f"{SITE}/torch/distributed/checkpoint/filesystem.py:300 _write_item", LOOP, *FIT)


def position(
    rank: int,
    phase: Phase,
    stack: tuple[str, ...] = (),
    *,
    step: int = 20,
    num_batches: int = 21,
    change: int = 0,
    **clocks: Any,
) -> Position:
    """One rank, alive and asleep in the kernel unless told otherwise."""
    usual = {
        "time_s": 100.0,
        "is_alive": True,
        "process_state": "S",
        "since_progress_s": 2.0,
        "num_steps": step,
    }
    return Position(
        pulse=Pulse(rank=rank, step=step, phase=phase, **{**usual, **clocks}),
        change=change,
        num_batches=num_batches,
        stack=list(stack),
    )


def waiting(rank: int, step: int = 20, **clocks: Any) -> Position:
    """A rank that waits for the others' gradients."""
    return position(rank, Phase.BACKWARD, GRADIENT_SYNC, step=step, **clocks)
