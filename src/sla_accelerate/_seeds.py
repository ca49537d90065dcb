"""The seed contract in a hand-written loop: when its parts come."""

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from slav1.contract import SeedSettings
from slav1.seeds import Choice, Seeds, choose, is_set, place_of, script_seed, set_first
from slav1.session import Session
from slav1.session.rendezvous import job_rendezvous
from slav1.testing import Faults

EARLY_LIMIT_S = 1800.0
"""How long ranks may come to their accelerator one after another, in seconds."""

SEEDS_LIMIT_S = 60.0
"""How long a rank at its first batch waits for the others, in seconds."""


def choose_early(settings: SeedSettings, *, rank: int, world_size: int, job: str) -> Choice | None:
    """Collective if seeds are set. Gives all ranks one seed as soon as they know of each other,
    so that models made after the accelerator start alike.

    Args:
        settings: The contract's clause.
        rank: Global rank.
        world_size: How many ranks there are.
        job: Says which job it is.

    Returns:
        The global seed; None if none is set.

    Raises:
        TimeoutError: If rank 0 does not come.
        ValueError: If ``SLA_SEED`` is no seed.
    """
    if not is_set(settings, os.environ):
        return None
    script, rendezvous = script_seed(), job_rendezvous()
    if rank == 0:
        choice = choose(
            settings,
            os.environ,
            script=script,
            earlier=None,
            job=job,
            time_ns=time.time_ns(),
        )
        place = place_of(choice)
        rendezvous.publish(json.dumps([*choice, place]).encode())
    else:
        seed, source, place = json.loads(rendezvous.fetch(EARLY_LIMIT_S))
        choice = Choice(seed, source)
    set_first(choice, script=script, is_alone=world_size == 1, place=place)
    return choice


class LoopSeeds:
    """The seeds of one watched loop."""

    def __init__(
        self,
        session: Session,
        *,
        choice: Choice | None,
        find_weights: Callable[[], Mapping[str, Tensor]],
        faults: Faults | None,
    ) -> None:
        """Changes nothing yet.

        Args:
            session: This rank's session.
            choice: The seed that all ranks have set; None if none is set.
            find_weights: Finds what all ranks hold alike, by name.
            faults: Faults planned for this rank; None if there are none.
        """
        self._seeds = Seeds(session.contract.seeds, session.peers, session.run_folder)
        if choice is not None:
            self._seeds.adopt(choice)
        self._find_weights = find_weights
        self._faults = faults
        self._has_started = False
        self._was_loaded = self._has_noise = False

    def start(self, step: int) -> None:
        """Collective. The first batch to train with is asked for: models are made and wrapped,
        and nothing of the data is drawn.

        Args:
            step: The step that comes next.
        """
        if self._has_started:
            return
        self._has_started = True
        if not self._has_noise:
            self._seeds.spread()
        weights = self._find_weights()
        if self._faults is not None:
            self._faults.first_weights(weights.values())
        self._compare("resume" if self._was_loaded else "start", step)

    def has_loaded(self, step: int, *, has_noise: bool, is_rollback: bool) -> None:
        """Collective. A checkpoint was loaded on all ranks.

        Args:
            step: The step that comes next.
            has_noise: Whether the generators were set back with it.
            is_rollback: Whether it was a rollback.
        """
        self._was_loaded, self._has_noise = True, has_noise
        if self._has_started:
            self._compare("rollback" if is_rollback else "resume", step)

    def begin_pass(self, loader: Any, epoch: int) -> None:
        """A pass over a loader to train with begins."""
        self._seeds.watch([loader], epoch)

    def bind(self, loader: Any) -> None:
        """A pass over another loader begins."""
        self._seeds.bind([loader])

    @property
    def tell_probe(self) -> Callable[..., None] | None:
        """Told what the first micro-batch, run again, has shown; None if nobody asks."""
        return self._seeds.tell_probe if self._seeds.probes else None

    def tell_workers(self, step: int) -> None:
        """Says what the workers have said; waits for nobody."""
        self._seeds.tell_workers(step)

    def close(self) -> None:
        """Gives everything back."""
        self._seeds.close()

    def _compare(self, moment: Any, step: int) -> None:
        self._seeds.compare(moment, step=step, weights=self._find_weights(), limit_s=SEEDS_LIMIT_S)
