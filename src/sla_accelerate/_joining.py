"""The part of a watched accelerator that nobody calls: joining the run, and what is watched."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakSet, ref

from torch import Tensor, nn
from torch.optim import Optimizer

from sla_accelerate import _runs
from sla_accelerate._batches.position import Positions
from sla_accelerate._compat import watch_fetches
from sla_accelerate._config.settings import settings_for
from sla_accelerate._figures import LoopFigures
from sla_accelerate._saved.restore import Restorer
from sla_accelerate._saved.saver import Saver
from sla_accelerate._saved.state import HeldState, has_scaler, is_replicated
from sla_accelerate._seeds import LoopSeeds
from sla_accelerate._told import ToldAccelerator
from sla_accelerate._wishes import Wishes
from sla_accelerate._wrapped import outermost
from sla_accelerate.actions import Mild, RollBack
from sla_accelerate.checkpoint import Checkpoints
from sla_accelerate.telemetry import LoopWatch
from slav1.replicas import Roots, replay_for


class JoiningAccelerator(ToldAccelerator):
    """An accelerator that joins the run of its process at the first sign of a training.

    All its fields are set by :meth:`_sla_set_up`, not by a constructor: an accelerator that
    exists already can become one.
    """

    def _sla_set_up(self, wishes: Wishes, launcher: Mapping[str, str]) -> None:
        """Collective. Makes what is under contract of what the host has set up.

        Args:
            wishes: What the user wants.
            launcher: What the launcher said.

        Raises:
            ValueError: On all ranks, if one of them can't use its settings, or they differ.
        """
        self._sla_wishes = wishes
        # Only now do ranks know of each other: one alone must not fail and leave them waiting.
        self._sla_settings = settings_for(self, wishes.asked)
        self._sla_launcher = launcher
        self._sla_has_run = False
        self._sla_seed = _runs.seed_for(self, self._sla_settings)
        self._sla_start_empty()

    def _sla_wish_again(self, wishes: Wishes) -> None:
        """Collective. The settings of one that is under contract already are given once more.

        Raises:
            ValueError: If they are others.
        """
        present = self._sla_wishes
        if present.is_unasked and not self._sla_has_run:
            self._sla_set_up(wishes, self._sla_launcher)
            self._sla_take_over()
            return
        settings = settings_for(self, wishes.asked)
        wanted = wishes._replace(asked=present.asked, is_unasked=present.is_unasked)
        names = [name for name, a, b in zip(Wishes._fields, present, wanted, strict=True) if a != b]
        names[:0] = settings.differing(self._sla_settings)
        if names:
            raise ValueError(
                f"This accelerator is under a contract already, with other {', '.join(names)}: "
                "attach it once, or with the same."
            )

    def _sla_start_empty(self) -> None:
        """Knows of nothing that was prepared, and belongs to no run."""
        self._sla_objects: WeakSet[nn.Module | Optimizer] = WeakSet()
        self._sla_positions = Positions()
        self._sla_joined: Callable[[], LoopWatch | None] = lambda: None
        self._sla_checkpoints = self._sla_shelve()

    def __getstate__(self) -> dict[str, Any]:
        """What a copy needs; it watches what it prepares itself."""
        own = ("_sla_objects", "_sla_positions", "_sla_joined", "_sla_checkpoints")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._sla_start_empty()

    def _sla_take_over(self) -> None:
        """Collective if there is an optimizer. Watches what the host has prepared already."""
        for model in self._models:
            self._sla_adopt(outermost(model))
        for loader in self._dataloaders:
            self._sla_follow(loader)
        for optimizer in self._optimizers:
            self._sla_adopt(optimizer)

    def _sla_begin(self) -> LoopWatch:
        """Collective. Joins the run, all ranks alike, at the first sign of a training."""
        is_new = _runs.current() is None
        self._sla_has_run = True
        wishes = self._sla_wishes
        watch = _runs.begin(self, self._sla_settings, wishes.on_stop, self._sla_launcher)
        has_joined = self._sla_joined() is watch
        self._sla_joined = ref(watch)
        watch.positions = self._sla_positions
        find_checkpoints = ref(self._sla_checkpoints)

        def find_rollback() -> RollBack | None:
            checkpoints = find_checkpoints()
            return None if checkpoints is None else checkpoints.roll_back

        def find_mild() -> Mild | None:
            checkpoints = find_checkpoints()
            return None if checkpoints is None else checkpoints.mild

        watch.orders.find_rollback = find_rollback
        watch.orders.find_mild = find_mild
        watch.gradients.are_whole = is_replicated(self)
        watch.gradients.has_scaler = has_scaler(self)
        if is_new:
            self._sla_open(watch)
        if not has_joined:
            for item in self._sla_objects:
                watch.prepared.add(item)
        return watch

    def _sla_open(self, watch: LoopWatch) -> None:
        """The run has just begun."""
        held = ref(self)
        watch.starts_within(self._sla_positions.num_in_open_passes)
        watch.seeds = LoopSeeds(
            watch.session,
            choice=self._sla_seed,
            find_weights=lambda: _replicas_of(held()),
            faults=watch.faults,
        )
        watch.replay = replay_for(
            watch.session,
            partial(_modules_to_replay, watch),
            tell_first=watch.seeds.tell_probe,
        )
        if self._sla_wishes.logs_figures and self.is_main_process:
            watch.figures = LoopFigures(watch.recorder)

    def _sla_watch(self) -> LoopWatch:
        """The run that the step in hand belongs to; begins it if this is the first one."""
        watch = _runs.current()
        if watch is not None and self._sla_joined() is watch:
            return watch
        stopped = _runs.stopped()
        if stopped is not None:
            raise stopped.stop_error()
        return self._sla_begin()

    def _sla_adopt(self, item: Any) -> Any:
        if isinstance(item, nn.Module | Optimizer):
            self._sla_objects.add(item)
            # A model by itself may be there to be looked at, not to be trained.
            if isinstance(item, Optimizer) or _runs.current() is not None:
                self._sla_begin().prepared.add(item)
        return item

    def _sla_follow(self, loader: Any) -> None:
        watch_fetches(loader, _runs.current)
        watch = _runs.current()
        if watch is None or watch.phases.pinned is None:
            # What is made for an evaluation is nothing to go on with.
            self._sla_positions.add(loader)

    def _sla_shelve(self) -> Checkpoints:
        def held() -> HeldState:
            return HeldState(self, self._models, self._optimizers)

        restorer = Restorer(
            self,
            load=super().load_state,
            held=held,
            num_custom=lambda: len(self._custom_objects),
        )
        saver = Saver(self, save=super().save_state, held=held, positions=self._sla_positions)
        return Checkpoints(
            self,
            saver=saver,
            restorer=restorer,
            settings=self._sla_settings.contract.checkpoint,
            positions=self._sla_positions,
            skips_bad_batches=self._sla_wishes.skips_bad_batches,
        )


def _modules_to_replay(watch: LoopWatch) -> Roots | str:
    """The models, by name; or why their calls can't be made again."""
    if not watch.gradients.are_whole:
        return "parameters are spread over ranks"
    return watch.prepared.modules()


def _replicas_of(accelerator: Any) -> dict[str, Tensor]:
    """What all ranks hold alike of an accelerator's models; nothing of one that is gone."""
    if accelerator is None:
        return {}
    return HeldState(accelerator, accelerator._models, accelerator._optimizers).replicas()  # noqa: SLF001 - as its own methods do
