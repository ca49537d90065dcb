"""What a rank's stack says: whether it waits for peers, where, and for whose code."""

import re
from collections.abc import Iterator
from pathlib import Path

from slav1.coordinator.messages import Position

# Innermost Python frames behind which a rank waits for its peers. Storage code under
# torch/distributed/checkpoint is none of them.
_COLLECTIVES = (
    "/torch/distributed/distributed_c10d.py",
    "/torch/distributed/c10d_logger.py",
    "/torch/distributed/utils.py",
    "/torch/distributed/_functional_collectives.py",
    "/torch/distributed/nn/functional.py",
    "/horovod/",
)
# The same, but a rank may also compute there: gradient sync happens inside of autograd.
_MAYBE_COLLECTIVES = (
    "/torch/autograd/graph.py",
    "/torch/nn/parallel/distributed.py",
    "/torch/_ops.py",
)
# Meetings of all ranks that are ours; what they wait in lies a few frames further in.
_MEETINGS = ("/slav1/session/answers.py", "/slav1/session/store_peers.py")
_MEETING_DEPTH = 3
# Host functions that read a collective's result: with a device, the wait is there.
_READS = (" _broadcast_sigterm_tensor", " reduce_boolean_decision")
_PASSED_THROUGH = (
    *_MEETINGS,
    *_COLLECTIVES,
    *_MAYBE_COLLECTIVES,
    "/torch/autograd/__init__.py",
    "/torch/_tensor.py",
    "/contextlib.py",
)
_COMPILES = ("/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/", "/triton/compiler/")
_STORES = ("/torch/serialization.py", "/torch/distributed/checkpoint/", "/safetensors/")
_INSTALLED = re.compile(r"/lib(64)?/python3[^/]*/")
# The same packages where they are installed elsewhere, or in development.
_LIBRARIES = (
    *("/lightning/pytorch/", "/lightning/fabric/", "/pytorch_lightning/", "/lightning_fabric/"),
    *("/torch/distributed/", "/torch/nn/", "/torch/autograd/", "/torch/optim/", "/torch/utils/"),
    *("/torch/_", "/accelerate/accelerator.py", "/accelerate/utils/", "/transformers/trainer.py"),
)
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_SOURCE = Path(__file__).parents[2]
_OURS = tuple(f"{_SOURCE}/{name}/" for name in ("slav1", "sla_lightning", "sla_accelerate"))
# What lies outside of this frame is the user's call of fit(), not what is going on in it.
_FIT = "/sla_lightning/actions.py"
_EPOCH_ENDS = (" on_train_epoch_end", "/loops/fit_loop.py")


def waits_for_peers(position: Position) -> bool:
    """Whether a rank sits in a call that only returns when other ranks come."""
    state = position.pulse.process_state
    if state in "TD" or not position.stack:
        return False
    if _is_in_meeting(position):
        return True
    innermost = position.stack[0]
    if any(part in innermost for part in _COLLECTIVES) or innermost.endswith(_READS):
        return True
    return state != "R" and any(part in innermost for part in _MAYBE_COLLECTIVES)


def is_compiling(position: Position) -> bool:
    """Whether a rank is inside PyTorch's compiler."""
    return any(part in frame for frame in position.stack for part in _COMPILES)


def is_storing(position: Position) -> bool:
    """Whether a rank writes or reads a checkpoint, whatever phase it says it is in."""
    return any(part in frame for frame in position.stack for part in _STORES)


def is_at_epoch_end(position: Position) -> bool:
    """Whether a rank has had the last batch of an epoch."""
    hook, loop = _EPOCH_ENDS
    return any(
        frame.endswith(hook) or (loop in frame and frame.endswith(" on_advance_end"))
        for frame in _inside_of_fit(position)
    )


def user_frame(position: Position) -> str | None:
    """The innermost frame of the user's own code inside of training; None if there is none."""
    for frame in _inside_of_fit(position):
        if not _is_foreign(frame):
            return short(frame)
    return None


def wait_site(position: Position) -> str | None:
    """The innermost frame that is no part of the machinery of waiting; None without stack."""
    for frame in position.stack:
        if not any(part in frame for part in _PASSED_THROUGH):
            return short(frame)
    return None


def operation(position: Position) -> str:
    """What a rank that waits is called to do, for people."""
    if not position.stack:
        return "an unknown operation"
    if _is_in_meeting(position):
        return "a meeting of all ranks"
    name = position.stack[0].rsplit(" ", 1)[-1]
    return "the gradient sync" if name == "_engine_run_backward" else name


def short(frame: str) -> str:
    """A frame without the path that all installed packages have in common."""
    return _PACKAGES.sub("", frame)


def _is_in_meeting(position: Position) -> bool:
    inner = position.stack[:_MEETING_DEPTH]
    return any(part in frame for frame in inner for part in _MEETINGS)


def _inside_of_fit(position: Position) -> Iterator[str]:
    for frame in position.stack:
        if _FIT in frame:
            return
        yield frame


def _is_foreign(frame: str) -> bool:
    if frame.startswith(("<", *_OURS)) or _INSTALLED.search(frame) is not None:
        return True
    return any(part in frame for part in _LIBRARIES)
