"""Putting the ranks' samples of one step together."""

from slav1.sample import Round, Sample

MAX_OPEN = 512
"""Steps kept while a rank's sample is missing; more mean that it will never come."""

MAX_SAMPLES = 1 << 15
"""Samples kept in all, some 10 MB: with many ranks fewer steps are kept."""

MIN_OPEN = 16
"""Steps kept whatever the number of ranks."""


class Rounds:
    """Collects samples until every rank has given its own."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._max_open = min(MAX_OPEN, max(MIN_OPEN, MAX_SAMPLES // world_size))
        self._open: dict[int, dict[int, Sample]] = {}
        self.num_dropped = 0
        """Steps given up because a sample never came."""
        self.newest = -1
        """Last step whose round was complete; -1 before the first."""

    def restart(self, newest: int) -> None:
        """Forgets what is open: the ranks went back to ``newest`` and do it again."""
        self._open.clear()
        self.newest = newest

    def add(self, sample: Sample) -> Round | None:
        """Takes in one sample; returns its round once that is complete."""
        samples = self._open.setdefault(sample.step, {})
        samples[sample.rank] = sample
        if len(samples) == self._world_size:
            del self._open[sample.step]
            self.newest = max(self.newest, sample.step)
            ordered = tuple(samples[rank] for rank in sorted(samples))
            return Round(step=sample.step, samples=ordered)
        if len(self._open) > self._max_open:
            del self._open[next(iter(self._open))]
            self.num_dropped += 1
        return None
