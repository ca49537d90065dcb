"""Lightning's strategies, with checkpoints that are proved before they count.

Importing this module makes them known by name: ``Trainer(strategy="sla_ddp")``.
"""

import atexit
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
    StrategyRegistry,
)
from lightning.pytorch.strategies.strategy import Strategy

if TYPE_CHECKING:
    from sla_lightning.checkpoint_guard import CheckpointGuard

REAP_AFTER_S = 5.0
"""How long ranks that this process started may go on when it ends, in seconds."""

if TYPE_CHECKING:
    # A mixin before a strategy; alone it is none, but the type checker has to know where it is.
    _Host: TypeAlias = Strategy
else:
    _Host = object


class SLAStrategyMixin(_Host):
    """Puts a guard between a strategy and its checkpoints, whatever format they have.

    It must be the first base. The guard is brought by the ``SLACallback`` of the trainer,
    and with it the contract; a trainer that has none gets one, with the contract that the
    environment names.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what the strategy takes."""
        super().__init__(*args, **kwargs)
        self.guard: CheckpointGuard | None = None

    def setup_environment(self) -> None:
        """Sees to it that there is a contract, and that no rank is left behind."""
        _bring_callback(self)
        super().setup_environment()
        atexit.register(self._reap)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Collective. Saves through the guard."""
        save = super().save_checkpoint
        if self.guard is None:
            save(checkpoint, filepath, storage_options=storage_options)
        else:
            self.guard.save(save, checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Collective. Loads what verifies."""
        load: Callable[..., dict[str, Any]] = super().load_checkpoint
        if self.guard is None:
            return load(checkpoint_path, weights_only=weights_only)
        return self.guard.load(load, checkpoint_path, weights_only)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Removes what is not needed to go on."""
        remove = super().remove_checkpoint
        if self.guard is None:
            remove(filepath)
        else:
            self.guard.remove(remove, filepath)

    def _reap(self) -> None:
        """Ends ranks that this process started: the host leaves them behind if it raises."""
        processes = getattr(self.launcher, "procs", None) or []
        deadline_s = time.monotonic() + REAP_AFTER_S
        for process in processes:
            while process.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.05)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)


class SLADDPStrategy(SLAStrategyMixin, DDPStrategy):
    """Data parallel; takes what Lightning's ``DDPStrategy`` takes."""


class SLAFSDPStrategy(SLAStrategyMixin, FSDPStrategy):
    """Fully sharded, first generation; takes what Lightning's ``FSDPStrategy`` takes."""


class SLAModelParallelStrategy(SLAStrategyMixin, ModelParallelStrategy):
    """Fully sharded, second generation, over all ranks; ``configure_model`` of the module
    has to shard it.

    Lightning's own default shards over the nodes only and splits tensors inside of each.
    """

    def __init__(
        self,
        data_parallel_size: int | Literal["auto"] = "auto",
        tensor_parallel_size: int | Literal["auto"] = 1,
        save_distributed_checkpoint: bool = True,  # noqa: FBT002 - as in the host
        **kwargs: Any,
    ) -> None:
        """Takes what Lightning's ``ModelParallelStrategy`` takes.

        Args:
            data_parallel_size: Ranks over which data and parameters are spread; ``auto`` is
                what ``tensor_parallel_size`` leaves of all ranks.
            tensor_parallel_size: Ranks over which single tensors are split.
            save_distributed_checkpoint: Whether every rank writes its own part.
            **kwargs: ``process_group_backend``, ``timeout``.
        """
        super().__init__(
            data_parallel_size=data_parallel_size,
            tensor_parallel_size=tensor_parallel_size,
            save_distributed_checkpoint=save_distributed_checkpoint,
            **kwargs,
        )

    def setup_environment(self) -> None:
        """Shards over all ranks, not over the nodes only."""
        host: Any = self
        num_ranks = self.num_nodes * self.num_processes
        if host._data_parallel_size == "auto" and host._tensor_parallel_size != "auto":  # noqa: SLF001
            host._data_parallel_size = num_ranks // host._tensor_parallel_size  # noqa: SLF001
        super().setup_environment()


class SLADeepSpeedStrategy(SLAStrategyMixin, DeepSpeedStrategy):
    """ZeRO, stages 1 to 3; takes what Lightning's ``DeepSpeedStrategy`` takes."""


def register() -> None:
    """Makes the strategies known by name; a second call changes nothing."""
    known: list[tuple[str, type[Strategy], dict[str, Any]]] = [
        ("sla_ddp", SLADDPStrategy, {}),
        ("sla_fsdp", SLAFSDPStrategy, {}),
        ("sla_fsdp2", SLAModelParallelStrategy, {}),
        *(
            (f"sla_deepspeed_stage_{stage}", SLADeepSpeedStrategy, {"stage": stage})
            for stage in (1, 2, 3)
        ),
    ]
    for name, strategy, settings in known:
        if name not in StrategyRegistry:
            description = (strategy.__doc__ or "").splitlines()[0]
            StrategyRegistry.register(name, strategy, description=description, **settings)


def _bring_callback(strategy: Strategy) -> None:
    """A strategy that was chosen by name carries no contract: the callback does."""
    from sla_lightning.callback import SLACallback

    module = strategy.lightning_module
    if module is None:
        return
    host: Any = module.trainer
    if not any(isinstance(callback, SLACallback) for callback in host.callbacks):
        host.callbacks = [SLACallback(), *host.callbacks]


register()
