"""Where a trainer is in its data: taken from a checkpoint, and counted without what is left out."""

import logging
from collections.abc import Callable
from typing import Any

from sla_accelerate._batches.order import Skip
from sla_accelerate._batches.position import Positions
from sla_accelerate._trainer import compat
from sla_accelerate._trainer.count import num_left_out, num_updates, skips_of
from sla_accelerate._trainer.resume import Loaded
from sla_accelerate.telemetry import LoopWatch

_log = logging.getLogger("sla_accelerate")


class Place:
    """Puts the loader, the random numbers and the counters of one ``train`` where a checkpoint
    says, and leaves out the batches of bad steps."""

    def __init__(
        self, host: Any, watch: LoopWatch, find_positions: Callable[[], Positions]
    ) -> None:
        """Starts at the beginning, with nothing left out.

        Args:
            host: The trainer.
            watch: The run.
            find_positions: Finds where the accelerator's loaders are.
        """
        self._host = host
        self._watch = watch
        self._find_positions = find_positions
        self._loaded: Loaded | None = None
        self._skips: tuple[Skip, ...] = ()
        self._num_batches = 0
        self._is_rollback = False
        self.is_taken_up = False
        """Whether this epoch goes on exactly where the checkpoint was made."""

    def load(self, loaded: Loaded, *, skips: tuple[Skip, ...] = (), is_rollback: bool) -> None:
        """A checkpoint is about to be gone on from.

        Args:
            loaded: What lies in it.
            skips: What is left out from now on.
            is_rollback: Whether it is gone back to in the running process.
        """
        saved = () if loaded.position is None else skips_of(loaded.position["loaders"][0])
        self._skips = tuple(dict.fromkeys([*self._skips, *saved, *skips]))
        self._loaded, self._is_rollback = loaded, is_rollback

    def values(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the host works out before it begins: with batches left out, the steps that the
        user has asked for take more epochs."""
        num_epochs, num_per_epoch, *_, num_batches, _ = values
        self._num_batches = num_batches or 0
        lost = self._num_lost(num_epochs)
        if lost and self._host.args.max_steps > 0:
            return (num_epochs + num_updates(lost, num_per_epoch), *values[1:])
        return values

    def begin(self, begun: Any) -> Any:
        """Epoch and batch with which the host begins; its state is there already."""
        state, args = self._host.state, self._host.args
        if self._skips and args.max_steps <= 0:
            state.max_steps -= self._num_lost(state.num_train_epochs)
        if self._loaded is None:
            return begun
        if self._is_rollback:
            compat.give_back_states(self._host)
        return begun if self._loaded.begin is None else tuple(self._loaded.begin)

    def epoch(self, run: Callable[..., Any], /, **kwargs: Any) -> Any:
        """Collective where a checkpoint was loaded. Runs one epoch of the host."""
        if self._loaded is not None:
            self._take_up(self._loaded)
            self._loaded = None
        num_out = num_left_out(self._skips, kwargs["epoch"], self._num_batches)
        if num_out:
            kwargs |= self._count(kwargs["steps_in_epoch"] - num_out)
        try:
            return run(**kwargs) if kwargs["steps_in_epoch"] > 0 else None
        finally:
            self.is_taken_up = False

    def _count(self, num_batches: int) -> dict[str, int]:
        accumulation = self._host.args.gradient_accumulation_steps
        return {
            "steps_in_epoch": num_batches,
            "num_update_steps_per_epoch": num_updates(num_batches, accumulation),
        }

    def _num_lost(self, num_epochs: int) -> int:
        """Updates that are not made, of all epochs."""
        accumulation, all_of_one = self._host.args.gradient_accumulation_steps, self._num_batches
        usual = num_updates(all_of_one, accumulation)
        counts = [
            num_left_out(self._skips, epoch, all_of_one)
            for epoch in {skip.epoch for skip in self._skips}
            if epoch < num_epochs
        ]
        return sum(usual - num_updates(all_of_one - count, accumulation) for count in counts)

    def _take_up(self, loaded: Loaded) -> None:
        """Collective. All is loaded, and nothing of the data is drawn yet."""
        watch, positions = self._watch, self._find_positions()
        step = loaded.step if loaded.step is not None else self._host.state.global_step - 1
        has_noise = compat.load_noise(self._host, loaded.path)
        positions.leave_out([self._skips] * len(positions))
        if loaded.position is None:
            reason = (
                "args.ignore_data_skip is set"
                if self._host.args.ignore_data_skip and not self._is_rollback
                else "it has none for this number of ranks"
            )
            self._say(
                f"The data position of {loaded.path} is not used: {reason}. The host works out "
                "where to go on."
            )
        else:
            world_size = watch.session.peers.world_size
            reason = positions.apply(loaded.position, world_size=world_size, step=step)
            if reason:
                self._say(f"The data position of {loaded.path} is not used: {reason}.")
            elif loaded.begin is not None and loaded.begin.num_trained == 0:
                positions.forget_plans()
            self.is_taken_up = not reason
        watch.gradients.watch.load(loaded.gradients)
        (watch.go_back if self._is_rollback else watch.resume)(step, loaded.detectors)
        if watch.seeds is not None:
            watch.seeds.has_loaded(step + 1, has_noise=has_noise, is_rollback=self._is_rollback)

    def _say(self, message: str) -> None:
        if self._watch.session.rank == 0:
            _log.warning(message)
            self._watch.session.note(message)
