"""The seed contract in Lightning: when its parts come in a ``fit``."""

import os
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from sla_lightning import _compat
from sla_lightning.save_facts import replicas_of, trained_of
from slav1.seeds import Moment, Seeds, sampler_seeds
from slav1.session import Session
from slav1.testing import Faults

HOST_VARIABLE = "PL_GLOBAL_SEED"
"""Where ``seed_everything`` leaves its seed; Lightning's own samplers take theirs from it."""


class FitSeeds:
    """The seeds of one ``fit``."""

    def __init__(
        self, trainer: Trainer, module: LightningModule, session: Session, faults: Faults | None
    ) -> None:
        """Collective if seeds are set. To be made in ``setup``: weights that ``configure_model``
        makes are still to come.

        Args:
            trainer: The trainer.
            module: What it trains.
            session: This rank's session.
            faults: Faults planned for this rank; None if there are none.
        """
        self._trainer = trainer
        self._module = module
        self._faults = faults
        self._session = session
        self._seeds = Seeds(session.contract.seeds, session.peers, session.run_folder)
        self._was_in_environment = os.environ.get(HOST_VARIABLE)
        if not self._seeds.groups:
            self._seeds.groups = _compat.ranks_of_one_model(trainer)
        given = self._was_in_environment or ""
        self._seeds.begin(
            script=int(given) if given.isdigit() else None,
            has_weights=next(iter(module.parameters()), None) is not None,
        )
        choice = self._seeds.choice
        # A single process that asks for nothing keeps the order of its data, too.
        is_changed = choice is not None and choice.source != "script"
        if choice is not None and is_changed and (choice.source != "made" or self._has_others):
            os.environ[HOST_VARIABLE] = str(choice.seed)

    @property
    def _has_others(self) -> bool:
        return self._trainer.world_size > 1

    def state(self) -> dict[str, Any]:
        """What belongs into a checkpoint."""
        choice = self._seeds.choice
        return {} if choice is None else {"seed": choice.seed}

    def adopt(self, state: dict[str, Any]) -> None:
        """Takes over the seed of a checkpoint, unless somebody has asked for another: the
        order of the data hangs on it."""
        choice, saved = self._seeds.choice, state.get("seed")
        if choice is None or not isinstance(saved, int) or not self._has_others:
            return
        if choice.source in ("made", "earlier start") and saved != choice.seed:
            self._seeds.adopt(choice._replace(seed=saved, source="earlier start"))
            os.environ[HOST_VARIABLE] = str(saved)

    def spread(self) -> None:
        """Gives this rank numbers of its own: the weights are made, data is still to be drawn."""
        self._seeds.spread()

    def compare(self, moment: Moment, state: dict[str, Any] | None) -> None:
        """Collective. Compares all ranks, with all that the host has done in place.

        Args:
            moment: Start, resume or rollback.
            state: The generators' states that the rank is about to go on with; None for
                those it has.
        """
        if self._faults is not None:
            self._faults.first_weights(self._module.parameters())
        # Later a rank may hold averages of its own.
        find = replicas_of if moment == "start" else trained_of
        self._seeds.compare(
            moment,
            step=self._trainer.global_step,
            weights=find(self._trainer),
            samplers=sampler_seeds(_compat.train_loaders(self._trainer)),
            state=state,
        )

    def watch_loaders(self) -> None:
        """The data of an epoch is about to be iterated."""
        loaders, epoch = _compat.train_loaders(self._trainer), self._trainer.current_epoch
        if epoch > 0 and not _compat.is_resuming(self._trainer):
            step = self._trainer.global_step
            self._seeds.check_samplers(loaders, epoch=epoch, step=step)
        self._seeds.watch(loaders, epoch)

    def bind_evaluation(self) -> None:
        """The loaders of the validation are made, and not iterated yet in this training."""
        self._seeds.bind(_compat.evaluation_loaders(self._trainer))

    @property
    def tell_probe(self) -> Callable[..., None] | None:
        """Told what the first micro-batch, run again, has shown; None if nobody asks."""
        return self._seeds.tell_probe if self._seeds.probes else None

    def tell_workers(self) -> None:
        """Says what the workers have said; waits for nobody."""
        self._seeds.tell_workers(self._trainer.global_step)

    def close(self) -> None:
        """Gives everything back."""
        self._seeds.close()
        if self._was_in_environment is None:
            os.environ.pop(HOST_VARIABLE, None)
        else:
            os.environ[HOST_VARIABLE] = self._was_in_environment
