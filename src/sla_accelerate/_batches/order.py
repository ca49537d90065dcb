"""Which batches a pass hands out: their numbers, their order, and what is left out."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from sla_accelerate._batches.noise import check_sum


class DataOrderError(RuntimeError):
    """A resumed pass brings its batches in another order than the pass that was saved.

    Attributes:
        epoch: The pass, from 0.
        num_handed: How many of its batches were used before the checkpoint.
    """

    def __init__(self, *, epoch: int, num_handed: int) -> None:
        super().__init__(
            f"The first {num_handed} batches of epoch {epoch} come in another order than when "
            "the checkpoint was saved, so going on would train on the wrong data: some batches "
            "twice, others never. The loader's sampler draws its order from something that is "
            "not restored, or the data set has changed. Use DataLoaderConfiguration("
            "use_seedable_sampler=True) with set_seed() at the start, or a sampler that draws "
            "from torch's, numpy's or Python's global generator or has a torch.Generator."
        )
        self.epoch = epoch
        self.num_handed = num_handed


class Skip(NamedTuple):
    """Batches that are left out."""

    epoch: int
    """The pass, from 0."""

    first: int
    """Number of the first one in the pass, from 0."""

    end: int
    """Number after the last one."""


def next_number(number: int, epoch: int, skips: tuple[Skip, ...]) -> int:
    """The number of the batch that comes when ``number`` is next in the sampler's order."""
    if not skips:
        return number
    for skip in sorted(skips):
        if skip.epoch == epoch and skip.first <= number < skip.end:
            number = skip.end
    return number


class Course:
    """One pass over a loader, as far as its order goes."""

    def __init__(
        self, *, epoch: int, first: int, skips: tuple[Skip, ...], factor: int, expected: int | None
    ) -> None:
        """Starts before its first batch.

        Args:
            epoch: The pass, from 0.
            first: Number of the first batch that is handed out.
            skips: What is left out of it and of other passes.
            factor: How many of the sampler's batches make one that is handed out.
            expected: Check sum of the order before ``first``; None if it is not known.
        """
        self.epoch = epoch
        self.first = first
        self.skips = skips
        self.factor = factor
        self.expected = expected
        self.offset = 0
        """Batches that the sampler itself leaves out at its start."""
        self.is_idle = False
        """Whether nothing is to be fetched for now."""
        self.sums: dict[int, int] = {}
        """Check sums of the order before each batch that the loop may get next."""

    def follows(self, number: int) -> int:
        """The number of the batch after ``number - 1``."""
        return next_number(max(number, self.first), self.epoch, self.skips)

    def forget_before(self, number: int) -> None:
        """Drops the sums that nobody asks for any more."""
        if not self.skips:
            # The one before was the only one left: this comes with each batch.
            self.sums.pop(number - 1, None)
            return
        for key in [key for key in self.sums if key < number]:
            del self.sums[key]

    def indices(self, sampler: Iterable[Any]) -> Iterator[Any]:
        """What of ``sampler`` is fetched.

        Raises:
            DataOrderError: If what comes before the first batch differs from before.
        """
        if self.is_idle:
            return
        # A sampler that leaves out the start itself does not show its order.
        total = self.expected if self.offset else 0
        place = self.offset * self.factor
        for indices in sampler:
            number = place // self.factor
            if place == self.first * self.factor:
                self._check(total)
            place += 1
            if total is not None:
                total = check_sum(total, indices)
                self.sums[number + 1] = total
            if number >= self.first and next_number(number, self.epoch, self.skips) == number:
                yield indices
            elif number < self.first:
                self.sums.pop(number, None)
        if place <= self.first * self.factor:
            self._check(total)

    def _check(self, total: int | None) -> None:
        if self.first and None not in (self.expected, total) and total != self.expected:
            raise DataOrderError(epoch=self.epoch, num_handed=self.first)
        if total is not None:
            self.sums[self.first] = total


class ToldSampler:
    """A loader's sampler, which hands out what the course under way says."""

    def __init__(self, sampler: Any, find_course: Callable[[], Course]) -> None:
        """Takes the sampler and what returns the course under way."""
        self._sampler = sampler
        self._find_course = find_course
        self._indices: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        self._indices = self._find_course().indices(self._sampler)
        return self

    def __next__(self) -> Any:
        # Looked up each time: workers have been handed some before it is primed.
        return next(self._indices)

    def prime(self) -> None:
        """Lets the sampler draw its order now instead of at the first fetch."""
        first = list(islice(self._indices, 1))
        self._indices = chain(first, self._indices)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)
