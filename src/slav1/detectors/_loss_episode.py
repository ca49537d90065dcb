"""A stretch of steps that began with something odd and has not become normal yet."""

from typing import NamedTuple

from slav1.detectors._loss_tests import Reading

NOTICED, SUSPECTED, CAUTIONED, BREACHED = 1, 2, 3, 4
# A loss this near to where the episode began is normal again, in standard deviations.
NORMAL_SIGMAS = 3.0
# Noise this near to the usual one is normal again, in standard deviations of its logarithm.
QUIET_SIGMAS = 1.0
# Samples after which an episode may end at a new level.
SETTLE_SAMPLES = 200


class Finding(NamedTuple):
    """One thing that is odd about a step."""

    kind: str
    severity: int
    """1 to be noticed, 2 a breach to be logged, 3 one to act on gently, 4 one to act on."""
    statistic: float
    limit: float
    unit: str
    arl0: float
    """Healthy steps between two false alarms of this kind."""
    action: str | None = None
    """What it asks for instead of the rule's own action."""


class Episode(NamedTuple):
    """What an episode must remember; all zero while there is none."""

    severity: int = 0
    noticed: tuple[str, ...] = ()
    """Kinds of finding that were told."""
    level: float = 0.0
    """Loss that was expected where it began."""
    scale: float = 0.0
    """Noise of the loss where it began; 0 if the loss was unknown then."""
    first_step: int = 0
    last_bad_step: int = 0
    num_samples: int = 0
    num_high: int = 0
    """Losses in a row that stand high enough for a breach; counted before it begins too."""

    def reference(self, reading: Reading) -> tuple[float, float]:
        """Level that a rise is measured from, and the noise that it is measured in."""
        if self.scale > 0.0:
            return self.level, self.scale
        return reading.expected, reading.scale


def begun_at(episode: Episode, step: int, reading: Reading | None) -> Episode:
    """An episode that begins at a step."""
    begun = episode._replace(first_step=step, last_bad_step=step)
    if reading is None:
        return begun
    return begun._replace(level=reading.expected, scale=reading.scale)


def news(episode: Episode, findings: list[Finding]) -> Finding | None:
    """The finding worth a line: the strongest, unless the episode told as much already."""
    strongest = max(findings, key=lambda finding: finding.severity, default=None)
    if strongest is None or strongest.severity > max(episode.severity, NOTICED):
        return strongest
    # Cautions ask for different things, so each is worth a line; of the rest only what is worse.
    least = CAUTIONED if episode.severity > NOTICED else NOTICED
    if episode.severity > least:
        return None
    return next(
        (f for f in findings if f.severity >= least and f.kind not in episode.noticed), None
    )


def grown(episode: Episode, finding: Finding) -> Episode:
    """The episode after a finding was told."""
    return episode._replace(
        severity=max(episode.severity, finding.severity),
        noticed=(*episode.noticed, finding.kind),
    )


def lasted(episode: Episode, step: int, *, is_bad: bool) -> Episode:
    """The open episode after one more sample."""
    # A rollback repeats steps: what was bad after them is not the last known any more.
    last_bad_step = step if is_bad else min(episode.last_bad_step, step)
    return episode._replace(last_bad_step=last_bad_step, num_samples=episode.num_samples + 1)


def is_back(episode: Episode, reading: Reading) -> bool:
    """Whether a loss and its noise are what they were before the episode."""
    level, scale = episode.reference(reading)
    is_quiet = "variance" not in episode.noticed or reading.height < QUIET_SIGMAS
    return is_quiet and reading.loss - level <= NORMAL_SIGMAS * scale
