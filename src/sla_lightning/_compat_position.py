"""Private names of Lightning by which loops and data are put where a checkpoint left them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

try:
    from lightning.fabric.utilities.data import _set_sampler_epoch
    from lightning.pytorch.loops.training_epoch_loop import RestartStage
except ImportError as error:
    IMPORT_ERROR = str(error)
else:
    IMPORT_ERROR = ""


def forget_progress(trainer: Trainer) -> None:
    """Takes an unwound fit loop back to where it can load a checkpoint."""
    host: Any = trainer
    loop = host.fit_loop
    host.training, host.should_stop = True, False
    host.lightning_module._current_fx_name = None
    host.lightning_module.train()
    for each in (loop, loop.epoch_loop.val_loop):
        if each._data_fetcher is not None:
            each._data_fetcher.teardown()
            each._data_fetcher = None
    loop._combined_loader, loop._last_train_dl_reload_epoch = None, float("-inf")
    host._logger_connector.reset_results()
    host._logger_connector.reset_metrics()
    for optimizer in host.optimizers:
        optimizer.zero_grad(set_to_none=True)


def restore(trainer: Trainer, path: Path) -> None:
    """Loads everything of a checkpoint into a training that is under way. Collective."""
    host: Any = trainer
    connector = host._checkpoint_connector
    resumed_from = connector._ckpt_path
    connector.restore(path)
    connector._ckpt_path = resumed_from
    for callback in host.checkpoint_callbacks:
        if hasattr(callback, "_last_global_step_saved"):
            # Else the host does not save a step that is made again.
            callback._last_global_step_saved = 0


def position_data(trainer: Trainer, before_iterating: Callable[[], None]) -> Callable[[], None]:
    """Puts loops and data where the checkpoint that was just loaded says.

    Args:
        trainer: The trainer, before its fit loop runs.
        before_iterating: Called before the data of a half-made epoch is iterated.

    Returns:
        What is left to do when the loop runs, before its epoch begins.
    """
    loop: Any = trainer.fit_loop
    batches, epochs = loop.epoch_loop.batch_progress, loop.epoch_progress
    states = list(loop._combined_loader_states_to_load or [])
    loop.setup_data()
    if loop._combined_loader is None or not trainer.num_training_batches:
        return lambda: None
    is_in_batch_end = batches.total.completed < batches.total.processed
    # Saved in a hook at the end of the epoch: the host has counted it already.
    is_counted = epochs.current.processed > epochs.current.completed
    # Saved after a fit: for the host its last epoch is over, however many batches that had.
    is_between = 0 < epochs.current.ready == epochs.current.completed
    is_over = batches.current.ready >= trainer.num_training_batches or batches.is_last_batch
    if is_over or is_counted or is_between:
        iterator = loop._combined_loader._iterator
        loop._combined_loader.reset()
        # Where no epoch follows, the host still asks it for its length at the end.
        loop._combined_loader._iterator = iterator
        _leave_restart(loop)
        for counts in (batches.total, batches.current):
            counts.completed = counts.processed
        is_counted = is_counted or is_between
        return lambda: _begin_next_epoch(trainer, is_counted, is_in_batch_end)
    for loader in loop._combined_loader.flattened:
        _set_sampler_epoch(loader, epochs.current.processed)
    loop._combined_loader.reset()
    loop._combined_loader._load_state_dicts(states)
    before_iterating()
    fetcher = loop._data_fetcher
    iter(fetcher)
    if not states:
        # One that prefetches counts; one that hands out its iterator has none to give.
        source = fetcher if hasattr(fetcher, "batches") else fetcher.iterator
        for _ in range(batches.current.ready):
            # Data that has become shorter ends where it ends.
            next(source, None)
        fetcher.fetched = 0
    return lambda: _make_up_validation(trainer) if is_in_batch_end else None


def _make_up_validation(trainer: Trainer) -> None:
    """Runs the validation that follows the batch in whose end a checkpoint was saved."""
    host: Any = trainer
    loop = host.fit_loop.epoch_loop
    if not loop._should_check_val_fx(host.fit_loop._data_fetcher):
        return
    host.validating = True
    loop.val_loop.restarting = False
    loop.val_loop.run()
    host.training = True
    if loop.restarted_on_train_batch_end:
        # The host goes on from here as from a checkpoint saved at the end of validation.
        loop.batch_progress.increment_completed()
        loop._restart_stage = RestartStage.RESTARTED_ON_LAST


def _begin_next_epoch(trainer: Trainer, is_counted: bool, is_in_batch_end: bool) -> None:
    """Ends an epoch whose last batch is in the checkpoint.

    In its own restart mode the host would make a batch too many, or take the order of
    another epoch.
    """
    loop: Any = trainer.fit_loop
    if is_in_batch_end:
        _make_up_validation(trainer)
    epochs = loop.epoch_progress
    if not is_counted:
        loop.epoch_loop._batches_that_stepped += 1
        epochs.increment_processed()
    for counts in (epochs.total, epochs.current):
        counts.completed = counts.started = counts.ready = counts.processed
    if loop.done:
        # The host leaves its loop over epochs.
        raise StopIteration


def _leave_restart(loop: Any) -> None:
    epoch_loop = loop.epoch_loop
    parts = (epoch_loop.val_loop, epoch_loop.automatic_optimization, epoch_loop.manual_optimization)
    for each in (loop, epoch_loop, *parts):
        each._restarting = each._loaded_from_state_dict = each._resuming_from_checkpoint = False
