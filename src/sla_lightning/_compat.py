"""Every private name of Lightning that this package touches, and whether it is there.

Known to keep their meaning from 2.6.0 on. If one is missing, what hangs on it is
switched off and said; training never is.
"""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

__all__ = [
    "SIGTERMException",
    "log_step",
    "missing_names",
    "reset_driver",
    "watch_fetches",
    "wrap_run",
]


def missing_names(trainer: Trainer) -> list[str]:
    """Private names that this Lightning lacks."""
    loop = trainer.fit_loop
    wanted = {
        "fit_loop.run": loop,
        "fit_loop.on_run_end": loop,
        "fit_loop.epoch_loop._on_before_fetch": loop.epoch_loop,
        "fit_loop.epoch_loop._on_after_fetch": loop.epoch_loop,
    }
    return [name for name, owner in wanted.items() if not hasattr(owner, name.rsplit(".", 1)[1])]


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


def reset_driver(trainer: Trainer) -> None:
    """Takes :func:`watch_fetches` and :func:`wrap_run` back."""
    loop: Any = trainer.fit_loop
    loop.__dict__.pop("run", None)
    for name in ("_on_before_fetch", "_on_after_fetch"):
        loop.epoch_loop.__dict__.pop(name, None)
