"""Every private name of Lightning that this package touches, and whether it is there.

Those that a checkpoint's position is taken up by stand in ``_compat_position``.

Known to keep their meaning from 2.6.0 on. If one is missing, what hangs on it is
switched off and said; training never is.
"""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy

from sla_lightning._compat_position import IMPORT_ERROR

_FOR_STOPS = (
    "fit_loop.run",
    "fit_loop.on_run_end",
    "fit_loop.epoch_loop._on_before_fetch",
    "fit_loop.epoch_loop._on_after_fetch",
)
_FOR_ROLLBACKS = (
    "_checkpoint_connector._ckpt_path",
    "_checkpoint_connector.restore",
    "_checkpoint_connector.resume_start",
    "_logger_connector.reset_metrics",
    "_logger_connector.reset_results",
    "fit_loop._combined_loader",
    "fit_loop._combined_loader_states_to_load",
    "fit_loop._data_fetcher",
    "fit_loop._last_train_dl_reload_epoch",
    "fit_loop._load_combined_loader_states",
    "fit_loop._loaded_from_state_dict",
    "fit_loop._restarting",
    "fit_loop._resuming_from_checkpoint",
    "fit_loop.epoch_loop._batches_that_stepped",
    "fit_loop.epoch_loop.advance",
    "fit_loop.epoch_loop.automatic_optimization",
    "fit_loop.epoch_loop.batch_progress",
    "fit_loop.epoch_loop.manual_optimization",
    "fit_loop.epoch_loop.on_run_start",
    "fit_loop.epoch_loop.val_loop._data_fetcher",
    "fit_loop.epoch_progress",
    "fit_loop.on_advance_start",
    "fit_loop.setup_data",
)
_LOOP_HOOKS = ("run", "on_advance_start", "teardown", "_load_combined_loader_states")
_EPOCH_LOOP_HOOKS = ("_on_before_fetch", "_on_after_fetch", "advance", "on_run_start")


def missing_names(trainer: Trainer) -> list[str]:
    """Private names that this Lightning lacks of those that a stop needs."""
    return _missing(trainer, _FOR_STOPS)


def missing_for_rollback(trainer: Trainer) -> list[str]:
    """Private names that this Lightning lacks of those that rollback and exact resume need."""
    return [*_missing(trainer, _FOR_ROLLBACKS), *([IMPORT_ERROR] if IMPORT_ERROR else [])]


def _missing(trainer: Trainer, names: tuple[str, ...]) -> list[str]:
    def is_missing(name: str) -> bool:
        owner: Any = trainer
        for part in name.split("."):
            if not hasattr(owner, part):
                return True
            owner = getattr(owner, part)
        return False

    return [name for name in names if is_missing(name)]


def log_step(trainer: Trainer) -> int:
    """Number under which the host's loggers get the metrics of the step in hand."""
    loop: Any = trainer.fit_loop.epoch_loop
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))


def watch_fetches(trainer: Trainer, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Calls ``before`` and ``after`` around every wait for a training batch.

    Takes effect at the start of the next epoch; the loop looks the names up there.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    host_before, host_after = loop._on_before_fetch, loop._on_after_fetch

    def on_before_fetch() -> None:
        host_before()
        before()

    def on_after_fetch() -> None:
        after()
        host_after()

    loop._on_before_fetch, loop._on_after_fetch = on_before_fetch, on_after_fetch


def wrap_run(trainer: Trainer, wrapper: Callable[[Callable[[], None]], None]) -> None:
    """Lets ``wrapper`` run the fit loop, which it is given as a function."""
    loop: Any = trainer.fit_loop
    host_run = loop.run
    loop.run = lambda: wrapper(host_run)


def before_iterating(trainer: Trainer, do: Callable[[], None]) -> None:
    """Calls ``do`` right before the training data of an epoch is iterated anew.

    Nothing of the host draws a random number in between.
    """
    loop: Any = trainer.fit_loop
    host_load, host_start = loop._load_combined_loader_states, loop.epoch_loop.on_run_start

    def load_combined_loader_states() -> None:
        host_load()
        do()

    def on_run_start(data_fetcher: Any) -> None:
        goes_on = loop.is_resuming or loop.epoch_loop.restarting
        if trainer.current_epoch > 0 and not goes_on:
            do()
        host_start(data_fetcher)

    loop._load_combined_loader_states = load_combined_loader_states
    loop.epoch_loop.on_run_start = on_run_start


def before_epoch(trainer: Trainer, do: Callable[[], None]) -> None:
    """Calls ``do`` before the hooks and the data of every epoch, a resumed one included."""
    loop: Any = trainer.fit_loop
    host_start = loop.on_advance_start

    def on_advance_start() -> None:
        do()
        host_start()

    loop.on_advance_start = on_advance_start


def skip_batches(trainer: Trainer, is_skipped: Callable[[int], bool]) -> None:
    """Draws batches and throws them away, as if they had been trained on.

    Args:
        trainer: The trainer.
        is_skipped: Says of a batch, counted over all epochs from 0, whether it is skipped.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    host_advance, progress = loop.advance, loop.batch_progress

    def advance(data_fetcher: Any) -> None:
        while is_skipped(progress.total.ready):
            next(data_fetcher)
            for counts in (progress.total, progress.current):
                counts.ready = counts.started = counts.processed = counts.completed = (
                    counts.ready + 1
                )
            progress.is_last_batch = data_fetcher.done
            if loop._num_ready_batches_reached():
                # What the host does after the last batch of an epoch.
                loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
                loop._batches_that_stepped -= 1
                return
        host_advance(data_fetcher)

    loop.advance = advance


def around_resume(trainer: Trainer, choose: Callable[[Any], Any]) -> None:
    """Lets ``choose`` replace the path that the host is about to load; None loads nothing."""
    connector: Any = trainer._checkpoint_connector
    host_start = connector.resume_start

    def resume_start(checkpoint_path: Any = None, weights_only: bool | None = None) -> None:
        host_start(choose(checkpoint_path), weights_only=weights_only)

    connector.resume_start = resume_start


def before_teardown(trainer: Trainer, do: Callable[[], None]) -> None:
    """Calls ``do`` before the loops are torn down, which the host does after an exception too."""
    loop: Any = trainer.fit_loop
    host_teardown = loop.teardown

    def teardown() -> None:
        do()
        host_teardown()

    loop.teardown = teardown


def batches_drawn(trainer: Trainer) -> Any:
    """Counts of batches over all epochs; its ``ready`` includes the one in hand."""
    return trainer.fit_loop.epoch_loop.batch_progress.total


def train_loaders(trainer: Trainer) -> list[Any]:
    """The loaders that the fit loop takes its batches from; none before it has made them."""
    combined = getattr(trainer.fit_loop, "_combined_loader", None)
    return [] if combined is None else list(combined.flattened)


def evaluation_loaders(trainer: Trainer) -> list[Any]:
    """The loaders of the validation; none before they are made."""
    combined = getattr(trainer.fit_loop.epoch_loop.val_loop, "_combined_loader", None)
    return [] if combined is None else list(combined.flattened)


def ranks_of_one_model(trainer: Trainer) -> tuple[tuple[int, ...], ...]:
    """Ranks that hold parts of the same tensors, and so have to draw the same numbers."""
    num = getattr(trainer.strategy, "_tensor_parallel_size", 1)
    num = trainer.strategy.num_processes if num == "auto" else num  # type: ignore[attr-defined]
    if num == 1:
        return ()
    return tuple(tuple(range(at, at + num)) for at in range(0, trainer.world_size, num))


def are_gradients_whole(trainer: Trainer) -> bool:
    """Whether each rank holds the whole gradient, the same on all ranks, at an update."""
    strategy = trainer.strategy
    is_known = isinstance(strategy, DDPStrategy | SingleDeviceStrategy)
    return is_known and not isinstance(strategy, DeepSpeedStrategy)


def replayable_modules(trainer: Trainer) -> list[tuple[str, Any]] | str:
    """The modules inside of the one that is trained, by name; or why their calls can't be made
    again, as the end of a sentence."""
    if not are_gradients_whole(trainer):
        return "parameters are spread over ranks"
    module: Any = trainer.lightning_module
    if getattr(module, "_compiler_ctx", None) is not None:
        return "the training step is compiled, so the modules in it are not seen"
    # Not the module itself: what it does is what the host logs and counts.
    return list(module.named_children())


def has_scaler(trainer: Trainer) -> bool:
    """Whether losses are scaled, so that updates are skipped in healthy runs."""
    if isinstance(trainer.strategy, DeepSpeedStrategy):
        engine: Any = trainer.strategy.model
        return bool(engine.fp16_enabled())
    return getattr(trainer.precision_plugin, "scaler", None) is not None


def is_engine(trainer: Trainer) -> bool:
    """Whether DeepSpeed's engine reduces gradients and updates by itself."""
    return isinstance(trainer.strategy, DeepSpeedStrategy)


def is_sharded(trainer: Trainer) -> bool:
    """Whether every rank writes a part of its own of each checkpoint."""
    strategy: Any = trainer.strategy
    return (
        isinstance(strategy, DeepSpeedStrategy)
        or getattr(strategy, "_state_dict_type", None) == "sharded"
        or bool(getattr(strategy, "_save_distributed_checkpoint", False))
    )


def is_tied_to_ranks(trainer: Trainer) -> bool:
    """Whether a checkpoint can only be loaded by as many ranks as have saved it."""
    strategy = trainer.strategy
    return isinstance(strategy, DeepSpeedStrategy) and not strategy.load_full_weights


def is_resuming(trainer: Trainer) -> bool:
    """Whether the loops have been loaded from a checkpoint and have not run since."""
    return bool(trainer.fit_loop.is_resuming)


def reset_driver(trainer: Trainer) -> None:
    """Takes back what the functions above have wrapped."""
    loop: Any = trainer.fit_loop
    for name in _LOOP_HOOKS:
        loop.__dict__.pop(name, None)
    for name in _EPOCH_LOOP_HOOKS:
        loop.epoch_loop.__dict__.pop(name, None)
    trainer._checkpoint_connector.__dict__.pop("resume_start", None)
