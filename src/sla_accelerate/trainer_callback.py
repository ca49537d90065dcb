"""The one callback that puts a ``transformers.Trainer`` under the contract."""

from pathlib import Path
from typing import Any

from slav1.contract import Contract

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"SLATrainerCallback needs transformers, which is not installed ({error}): "
        "pip install transformers"
    ) from error

from sla_accelerate._trainer import compat
from sla_accelerate._trainer.watch import TrainerWatch, Wanted
from sla_accelerate.actions import check_on_stop


class SLATrainerCallback(TrainerCallback):
    """Watches the training of a ``transformers.Trainer`` by a stability contract.

    Adding it to ``Trainer(callbacks=[...])`` is the whole adoption, also for trainers that
    derive from it, as those of TRL do. It measures in the trainer and judges outside of it, so a
    rank that hangs or dies is found as well. A stop is carried out by all ranks at the end of
    the same step: ``train`` then returns without evaluating and without saving the state in
    breach, and :attr:`stopped_at` says at which step.

    Checkpoints are written, read back and only then kept under their name;
    ``resume_from_checkpoint=True`` takes the newest one that verifies, and ``"last_good"`` does
    the same but begins from the start if there is none yet.

    Example:
        >>> callback = SLATrainerCallback("L1")
        >>> callback.stopped_at is None
        True
    """

    def __init__(
        self,
        contract: str | Contract | None = None,
        run_dir: str | None = None,
        *,
        on_stop: str = "flag",
        skip_bad_batches: bool = True,
    ) -> None:
        """Stores the settings; nothing is started before ``train``.

        Args:
            contract: ``L1``, ``L2``, ``L3``, the path of a contract file, or a
                ``Contract``. Default: ``SLA_CONTRACT``, else the block ``sla`` of Accelerate's
                own file, else ``L1``.
            run_dir: Folder in which each run gets a folder of its own. Default:
                ``SLA_RUN_DIR``, else that of the block, else ``sla_runs``.
            on_stop: What a stop does once ``train`` has ended in good order: ``flag`` lets it
                return and sets :attr:`stopped_at`; ``raise`` raises
                :class:`~sla_accelerate.TrainingStoppedError`. A restart raises in any case, or
                no launcher would start again.
            skip_bad_batches: Whether a rollback leaves out the batches of the bad steps;
                otherwise they are tried again.

        Raises:
            ValueError: If ``on_stop`` is neither.
        """
        self._wanted = Wanted(
            contract=contract,
            run_dir=run_dir,
            on_stop=check_on_stop(on_stop),
            skips_bad_batches=skip_bad_batches,
        )
        self._watch: TrainerWatch | None = None

    @property
    def stopped_at(self) -> int | None:
        """Step at whose end the contract stopped the last ``train``; None if it did not."""
        return None if self._watch is None else self._watch.stopped_at

    @property
    def run_folder(self) -> Path | None:
        """Folder of the last run; None before the first."""
        return None if self._watch is None else self._watch.run_folder

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer is set up: takes its wheel.

        Raises:
            ValueError: If it has two such callbacks, or another trainer has this one.
        """
        trainer = compat.trainer_that_calls()
        assert trainer is not None, "only a trainer's constructor calls this"
        if len(_asked_for(trainer)) > 1:
            raise ValueError(
                "callbacks holds two SLATrainerCallbacks; one watches everything. Remove one."
            )
        if self._watch is not None:
            raise ValueError(
                "This SLATrainerCallback belongs to another Trainer already. Give each Trainer "
                "its own."
            )
        self._watch = TrainerWatch(trainer, self._wanted, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins.

        Raises:
            ValueError: If the trainer was given this callback too late.
        """
        self._watching()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step is counted."""
        self._watching().end_step(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The batches of an epoch are used up."""
        self._watching().end_epoch(control)

    def __getstate__(self) -> dict[str, Any]:
        """Settings only: sockets and shared memory stay in their process."""
        return {**vars(self), "_watch": None}

    def _watching(self) -> TrainerWatch:
        """What the trainer is watched by; ValueError if it came too late for that."""
        if self._watch is None:
            raise ValueError(
                "SLATrainerCallback came to its Trainer after that was set up, by add_callback. "
                "It has to be there from the start: Trainer(..., callbacks=[SLATrainerCallback()])."
            )
        return self._watch


class UnaskedTrainerCallback(SLATrainerCallback):
    """What ``python -m sla_accelerate.run`` gives each trainer; one of the script's own wins.

    The script does not know of it, so a stop raises.
    """

    def __init__(self) -> None:
        """Takes everything from the environment."""
        super().__init__(on_stop="raise")
        self._is_idle = False

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer is set up."""
        self._is_idle = bool(_asked_for(compat.trainer_that_calls()))
        if not self._is_idle:
            super().on_init_end(args, state, control, **kwargs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins."""
        if not self._is_idle:
            super().on_train_begin(args, state, control, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step is counted."""
        if not self._is_idle:
            super().on_step_end(args, state, control, **kwargs)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The batches of an epoch are used up."""
        if not self._is_idle:
            super().on_epoch_end(args, state, control, **kwargs)


def _asked_for(trainer: Any) -> list[SLATrainerCallback]:
    """The callbacks of this kind that the script has given a trainer."""
    return [
        one
        for one in trainer.callback_handler.callbacks
        if isinstance(one, SLATrainerCallback) and not isinstance(one, UnaskedTrainerCallback)
    ]
