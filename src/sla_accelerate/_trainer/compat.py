"""Every private name of ``transformers.Trainer`` that this package touches, and whether it is
there.

Known to keep their meaning in 5.24. If one is missing, what hangs on it is switched off and
said; training never is.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from transformers import Trainer, trainer
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from sla_accelerate import _runs
from sla_accelerate._compat import is_watched, track_of, watch_fetches
from sla_accelerate._saved.state import with_memory_of_their_own

STATE: str = trainer.TRAINER_STATE_NAME
"""The file in a checkpoint that holds the trainer's own counters."""

_NAMES = (
    "_finalize_training",
    "_get_output_dir",
    "_init_training_state",
    "_inner_training_loop",
    "_load_best_model",
    "_load_from_checkpoint",
    "_load_rng_state",
    "_run_epoch",
    "_save_checkpoint",
)


def trainer_that_calls() -> Any:
    """The trainer whose constructor is calling a callback right now; None if none is.

    A callback is not told whose it is, so the callers are asked.
    """
    frame = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def missing(host: Any) -> list[str]:
    """Private names that a trainer lacks."""
    return [name for name in _NAMES if not hasattr(host, name)]


def wrap(host: Any, name: str, around: Callable[..., Any]) -> None:
    """Puts ``around`` in the place of a method of one trainer, if it has that.

    Args:
        host: The trainer.
        name: The method.
        around: Called with the method it replaces, and what that is called with.
    """
    method: Callable[..., Any] | None = getattr(host, name, None)
    if method is None:
        return

    @wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(method, *args, **kwargs)

    setattr(host, name, wrapped)


def method_of(host: Any, name: str) -> Callable[..., Any]:
    """A method of a trainer as it was before it was wrapped."""
    method = getattr(host, name)
    found: Callable[..., Any] = getattr(method, "__wrapped__", method)
    return found


def why_no_way_back(host: Any, lacks: list[str]) -> str:
    """Why a trainer can't enter its loop again at an earlier step; '' if it can."""
    if lacks:
        return f"this transformers.Trainer lacks {', '.join(lacks)}."
    if host.is_deepspeed_enabled or host.is_fsdp_enabled:
        engine = "DeepSpeed" if host.is_deepspeed_enabled else "FSDP"
        return (
            f"transformers.Trainer can't set {engine} up twice in one process. Start the job "
            "again with resume_from_checkpoint='last_good'."
        )
    return ""


def output_dir(host: Any, trial: Any = None) -> Path:
    """Folder in which a trainer keeps its checkpoints."""
    found = getattr(host, "_get_output_dir", lambda trial: host.args.output_dir)
    return Path(os.path.realpath(found(trial=trial)))


def folder_name(global_step: int) -> str:
    """Name of a checkpoint's folder."""
    return f"{PREFIX_CHECKPOINT_DIR}-{global_step}"


@contextmanager
def writing_to(host: Any, folder: Path) -> Iterator[Path]:
    """Lets a trainer write its next checkpoint to ``folder``, whatever its name.

    The host composes the path itself, of a folder and the step, and removes what else it finds
    beside. So it is given a folder of its own, with one link in it.

    Yields:
        What the host takes for the checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pushed: list[Any] = []
    kept = {name: vars(host).get(name) for name in ("_get_output_dir", "_push_from_checkpoint")}
    with _folder_for_a_link(folder) as place:
        link = Path(place) / folder_name(host.state.global_step)
        link.symlink_to(folder.absolute(), target_is_directory=True)
        host._get_output_dir = lambda *_, **__: place
        # To be pushed once it is a checkpoint.
        host._push_from_checkpoint = pushed.append
        try:
            yield link
        finally:
            for name, method in kept.items():
                if method is None:
                    delattr(host, name)
                else:
                    setattr(host, name, method)
            link.unlink()


def _folder_for_a_link(folder: Path) -> "tempfile.TemporaryDirectory[str]":
    """A folder on a disk of this machine; beside the checkpoint where there is no room on any."""
    try:
        return tempfile.TemporaryDirectory(prefix="sla-")
    except OSError:
        return tempfile.TemporaryDirectory(prefix=".sla-link-", dir=folder.parent)


def push(host: Any, folder: Path) -> None:
    """Uploads a checkpoint, where the user has asked for that."""
    if host.args.push_to_hub:
        host._push_from_checkpoint(str(folder))


def load_weights(host: Any, folder: Path) -> None:
    """Loads the weights of a checkpoint, as ``train`` does before it begins."""
    host._load_from_checkpoint(str(folder))
    # Counted for the state that was left.
    host.current_flos = 0


def load_noise(host: Any, folder: Path) -> bool:
    """Puts the random number generators where a checkpoint says; returns whether it does."""
    method_of(host, "_load_rng_state")(str(folder))
    rank, num_ranks = host.args.process_index, host.args.world_size
    return (folder / (f"rng_state_{rank}.pth" if num_ranks > 1 else "rng_state.pth")).is_file()


def give_back_states(host: Any) -> None:
    """Gives the other callbacks what the trainer's state, as it was loaded, holds of theirs: the
    host leaves them as they are, and what they counted since did not happen."""
    held = {name: [*_listed(one)] for name, one in host.state.stateful_callbacks.items()}
    for callback in host.callback_handler.callbacks:
        if isinstance(callback, ExportableState) and held.get(type(callback).__name__):
            for name, value in held[type(callback).__name__].pop(0)["attributes"].items():
                setattr(callback, name, value)


def _listed(one: Any) -> list[Any]:
    return one if isinstance(one, list) else [one]


def begin_again(host: Any) -> None:
    """Lets a trainer enter its loop again without telling its callbacks that training begins: to
    them it goes on."""
    handler = host.callback_handler

    def on_train_begin(args: Any, state: Any, control: Any, **_: Any) -> Any:
        del handler.on_train_begin
        control.should_training_stop = control.should_epoch_stop = False
        return control

    handler.on_train_begin = on_train_begin


def is_told(host: Any, callback: Any) -> bool:
    """Whether a callback is still one of the trainer's."""
    return any(one is callback for one in host.callback_handler.callbacks)


def put_last(host: Any, callback: Any) -> None:
    """Lets a callback be told after all others, so that it has the last word."""
    callbacks = host.callback_handler.callbacks
    if callback in callbacks:
        callbacks.remove(callback)
        callbacks.append(callback)


def keep_in_accelerator(host: Any) -> None:
    """A model that was wrapped before is not prepared again, and the accelerator has dropped it."""
    models = host.accelerator._models
    if not any(model is host.model for model in models):
        models.append(host.model)


def watch_skipping() -> None:
    """Lets all trainers of this process skip batches of watched loaders in a watched way.

    A loader whose next pass begins where it shall already has nothing to skip.
    """
    host: Any = trainer
    skip = getattr(host, "skip_first_batches", None)
    if skip is None or hasattr(skip, "sla_host"):
        return

    @wraps(skip)
    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        track = track_of(dataloader)
        if track is not None and track.plan is not None:
            return dataloader
        skipping = skip(dataloader, num_batches)
        if is_watched(dataloader):
            watch_fetches(skipping, _runs.current, origin=dataloader, offset=num_batches)
        return skipping

    skip_first_batches.sla_host = skip  # type: ignore[attr-defined]
    host.skip_first_batches = skip_first_batches


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints in a folder by the number in their name, highest first."""
    prefix = f"{PREFIX_CHECKPOINT_DIR}-"
    found = [path for path in folder.glob(f"{prefix}*") if path.is_dir()]
    numbers = [(path.name.removeprefix(prefix), path) for path in found]
    return sorted(
        ((int(number), path) for number, path in numbers if number.isdigit()), reverse=True
    )


def saved_tensors(host: Any) -> dict[str, Any]:
    """What a trainer hands to be written, by the names that its files have for it."""
    model = host.accelerator.unwrap_model(host.model)
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        return dict(get_peft_model_state_dict(model))
    return with_memory_of_their_own(model.state_dict())
