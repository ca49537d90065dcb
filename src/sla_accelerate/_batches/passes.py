"""Where a prepared loader is: its pass, the batches of it that the loop has got, and the
random numbers that it takes to go on from there in the same way.

What an unbroken run does, with one batch fetched ahead: it begins a pass (which draws),
fetches batches 0 and 1, hands out 0, trains, fetches 2, hands out 1, trains, and so on. To
go on after batch n the way it would have, the states of the generators are set three times:
to those before the pass when it begins, to those before batch n + 1 was fetched when that
one is fetched again, and to those at the checkpoint before anything else is drawn.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from sla_accelerate._batches import noise as _noise
from sla_accelerate._batches.noise import Draws, Noise
from sla_accelerate._batches.order import Course, Skip, ToldSampler
from sla_accelerate._batches.plan import Plan, generators_of, seeds_of, set_sources


class LoaderTrack:
    """What is known of one prepared loader."""

    def __init__(self, before_pass: Callable[[Any, int], None] = lambda *_: None) -> None:
        self.before_pass = before_pass
        """Told of the loader underneath and the epoch before a pass draws anything."""
        self.plan: Plan | None = None
        """How the next pass begins; also ends one that is under way."""
        self.skips: tuple[Skip, ...] = ()
        """Batches that no pass hands out."""
        self.epoch = 0
        """The pass that is under way, or was when the loop left it; from 0."""
        self.num_handed = 0
        """Batches of it that the loop has got, left out ones included."""
        self.is_open = False
        """Whether a pass was begun and did not come to its end."""
        self.is_training = False
        """Whether the loop has trained with its batches."""
        self.chains_epochs = True
        """Whether a loop that is taken back over the end of an epoch goes on with the
        next one by itself."""
        self._course: Course | None = None
        self._start: Noise | None = None
        self._fetch: Noise | None = None
        self._generators: tuple[Tensor, ...] = ()
        self._is_reused = False

    def position(self, loader: Any) -> Plan:
        """Where the loader is; what :attr:`plan` needs to go on from here."""
        seeds = seeds_of(loader)
        states = tuple(each.get_state() for each in generators_of(loader))
        if not self.is_open:
            return Plan(getattr(loader, "iteration", 0), generators=states, seeds=seeds)
        is_at_end = bool(loader.end_of_dataloader)
        return Plan(
            self.epoch,
            self.num_handed,
            None if self._course is None else self._course.sums.get(self.num_handed),
            self._start,
            # A pass with nothing left is not begun again, so nobody draws its order again.
            states if is_at_end else self._generators,
            self._fetch,
            seeds=seeds,
            is_at_end=is_at_end,
            is_reused=self._is_reused,
        )

    def begin(self, epoch: int, plan: Plan | None, *, factor: int, offset: int) -> None:
        """A pass begins."""
        self.epoch = epoch
        self.num_handed = max(offset, 0 if plan is None else plan.num_handed)
        self.is_open = True
        self._start = self._fetch = None
        self._generators = ()
        self._course = Course(
            epoch=epoch,
            first=self.num_handed,
            skips=self.skips,
            factor=factor,
            expected=None if plan is None else plan.order,
        )
        self._course.offset = offset

    def hand_out(self) -> None:
        """The loop gets a batch."""
        course = self.course()
        self.num_handed = course.follows(self.num_handed) + 1
        course.forget_before(self.num_handed)

    def course(self) -> Course:
        """The pass under way."""
        assert self._course is not None
        return self._course

    def note_start(self, loader: Any, plan: Plan | None, *, is_reused: bool) -> None:
        """The states before the pass are in place."""
        self._is_reused = is_reused
        if plan is None or plan.start is None:
            self._start = _noise.capture()
            self._generators = tuple(each.get_state() for each in generators_of(loader))
            return
        self._start, self._generators = plan.start, plan.generators

    def note_fetch(self, noise: Noise) -> None:
        """The states before a batch is fetched."""
        self._fetch = noise


class Fetches:
    """One pass over the loader underneath; sets the random numbers where they belong."""

    def __init__(self, loader: Any, track: LoaderTrack, plan: Plan | None) -> None:
        """Begins the pass.

        Args:
            loader: The prepared loader.
            track: What is known of it.
            plan: How to begin; None for from the start.
        """
        self._track = track
        self._plan = plan
        self._factor = track.course().factor
        # In worker processes the data set draws from generators of theirs.
        self._draws_here = loader.num_workers == 0
        self._draws = Draws()
        self._num_fetched = 0
        self._number = 0
        base = loader.base_dataloader
        is_reused = getattr(base, "_iterator", None) is not None
        if plan is not None and plan.start is not None:
            if plan.is_reused and not is_reused and base.persistent_workers:
                self._start_workers(loader)
                is_reused = True
            _noise.restore(plan.start)
            set_sources(loader, plan)
            if is_reused and not plan.is_reused:
                # As the loader does when it starts its workers.
                torch.empty((), dtype=torch.int64).random_(generator=base.generator)
            is_reused = plan.is_reused
        track.note_start(loader, plan, is_reused=is_reused)
        # A loader that keeps its own state has been put where it belongs by the host.
        is_stream = isinstance(loader.dataset, IterableDataset)
        self._drops = is_stream and not loader.use_stateful_dataloader
        self._batches = self._begin(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._num_fetched % self._factor == 0:
            self._prepare()
        self._num_fetched += 1
        batch = next(self._batches)
        if self._draws_here and self._num_fetched % self._factor == 0:
            self._draws.end()
        return batch

    def settle(self) -> None:
        """The first batch is there, or there is none: all goes on from the checkpoint."""
        plan, self._plan = self._plan, None
        if plan is not None and plan.now is not None:
            _noise.restore(plan.now)

    def _start_workers(self, loader: Any) -> None:
        """Lets the loader start its workers, with nothing to fetch: they begin a pass anew
        in another way than they were started."""
        course = self._track.course()
        course.is_idle = True
        self._begin(loader)
        course.is_idle = False

    def _begin(self, loader: Any) -> Iterator[Any]:
        base = loader.base_dataloader
        if isinstance(loader.dataset, IterableDataset) or loader.use_stateful_dataloader:
            stream: Iterator[Any] = iter(base)
            return stream
        name = "batch_sampler" if base.batch_sampler is not None else "sampler"
        sampler = getattr(base, name)
        told = ToldSampler(sampler, self._track.course)
        # An iterator takes its sampler when it is made and keeps it.
        base.__dict__[name] = told
        try:
            batches: Iterator[Any] = iter(base)
        finally:
            base.__dict__[name] = sampler
        if self._plan is not None:
            told.prime()
        return batches

    def _prepare(self) -> None:
        if self._drops:
            number = self._track.course().follows(self._number)
            for _ in range((number - self._number) * self._factor):
                next(self._batches)
            self._number = number + 1
        if self._num_fetched > 0:
            self.settle()
        elif self._plan is not None and self._plan.fetch is not None:
            _noise.restore(self._plan.fetch)
        if self._draws_here:
            self._track.note_fetch(self._draws.begin())
