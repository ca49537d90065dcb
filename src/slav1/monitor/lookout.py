"""Reading all ranks of a node: steps and clocks to the detectors, and a report of it."""

from collections.abc import Callable, Sequence

from slav1.breach import Breach
from slav1.contract import Contract, Mode
from slav1.coordinator import messages as job
from slav1.detectors._detector import is_of_job
from slav1.guard import Guard
from slav1.monitor.process_tree import ProcessTree
from slav1.monitor.watched_rank import WatchedRank
from slav1.sample import Sample, Usage

REPORT_EVERY_S = 1.0
"""A report goes out at least so often, in seconds, empty or not."""

PULSE_EVERY_S = 0.25
"""Pause between two readings of the clocks of a rank that makes no progress, in seconds. One
that does is read each second, new steps are read each tick, and a death is told by the kernel."""

MAX_SAMPLES = 2000
"""Samples in one report; more go out in several."""


class Lookout:
    """Runs the detectors of single ranks and tells the coordinator. Time is passed in."""

    def __init__(self, contract: Contract, send: Callable[[job.FromNode], None]) -> None:
        """Starts with nothing seen.

        Args:
            contract: The contract in force.
            send: Sends a message to the coordinator.
        """
        self._send = send
        detectors = {
            name: rule.detector
            for name, rule in contract.rules.items()
            if not is_of_job(rule.detector) and rule.mode is not Mode.OFF
        }
        self._guard = Guard(detectors)
        self._tree = ProcessTree()
        self._reads_usage = any(Usage in each.WATCHES for each in detectors.values())
        self._reported_at_s = self._pulsed_at_s = float("-inf")
        self.has_news = False
        """Whether any rank had ended a step at the last look."""

    @property
    def num_seen(self) -> dict[str, int]:
        """Events that each rule has seen."""
        return dict(self._guard.num_seen)

    def is_pulse_due(self, now_s: float) -> bool:
        """Whether it is time to read clocks again."""
        return now_s - self._pulsed_at_s >= PULSE_EVERY_S

    def look(
        self, ranks: Sequence[WatchedRank], now_s: float, *, with_pulses: bool
    ) -> list[Breach]:
        """Reads ranks once, reports, and gives each a sign of life.

        Args:
            ranks: Those that are there.
            now_s: Monotonic clock, in seconds.
            with_pulses: Whether clocks are read too.

        Returns:
            What the detectors found.
        """
        samples = _new_samples(ranks)
        self.has_news = bool(samples)
        found: list[Breach] = []
        for sample in samples:
            found += self._guard.observe(sample)
        if with_pulses:
            self._pulsed_at_s = now_s
            for rank in ranks:
                if rank.is_worth_a_pulse(now_s):
                    found += self._guard.observe(rank.pulse(now_s))
        if samples and self._reads_usage:
            found += self._look_at_usage(ranks, now_s)
        if samples or found or now_s - self._reported_at_s >= REPORT_EVERY_S:
            self._reported_at_s = now_s
            self._report(samples, found)
        for rank in ranks:
            rank.beat()
            for finding in found:
                if finding.rank == rank.rank and (wanted := finding.evidence.get("wants")):
                    rank.ask_for_allocations(is_device=wanted == "device_allocations")
        return found

    def forget_steps(self, rank: int) -> None:
        """A rank went back to a checkpoint: what its steps showed before means nothing."""
        self._guard.forget_steps(rank)

    def _look_at_usage(self, ranks: Sequence[WatchedRank], now_s: float) -> list[Breach]:
        found: list[Breach] = []
        pids = frozenset(rank.process.pid for rank in ranks)
        for rank in ranks:
            usage = rank.usage.read(self._tree, pids, now_s)
            if usage is not None:
                found += self._guard.observe(usage)
        return found

    def _report(self, samples: list[Sample], found: list[Breach]) -> None:
        packed = [job.pack_breach(finding) for finding in found]
        while len(samples) > MAX_SAMPLES:
            self._send(job.Report(samples=samples[:MAX_SAMPLES], findings=[]))
            samples = samples[MAX_SAMPLES:]
        self._send(job.Report(samples=samples, findings=packed))


def _new_samples(ranks: Sequence[WatchedRank]) -> list[Sample]:
    samples = [sample for rank in ranks for sample in rank.new_samples()]
    # What goes wrong on one rank is on all of them a step later: the first one counts.
    return sorted(samples, key=lambda sample: sample.step)
