"""Loss spikes, shifts and growing noise, by sequential tests on the de-trended loss."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from slav1.breach import Breach
from slav1.detectors._grad_norm import RISE_RATIO, GradNorm, heard
from slav1.detectors._grad_norm import SIGMAS as NORM_SIGMAS
from slav1.detectors._loss_episode import (
    BREACHED,
    CAUTIONED,
    NOTICED,
    SETTLE_SAMPLES,
    SUSPECTED,
    Episode,
    Finding,
    begun_at,
    grown,
    is_back,
    lasted,
    news,
)
from slav1.detectors._loss_report import (
    RULE,
    Look,
    breach_from,
    heavy_tail_arl0,
    recovery_from,
)
from slav1.detectors._loss_tests import NUM_NEEDED, LossTests, Reading, observe_loss
from slav1.detectors._noise import Noise
from slav1.detectors._round import lead, mean_density, mean_grad_norm, mean_loss
from slav1.detectors._sparsity import FALL_RATIO, Density, thinned
from slav1.detectors._sparsity import SIGMAS as DENSITY_SIGMAS
from slav1.sample import Round

# Odd losses, gradient norms and densities in a row that are a breach.
NUM_IN_A_ROW = 2
# An episode ends at a new level only where the trend has caught up with it.
CALM_SIGMAS = 3.0
# What ranks usually differ by is looked at once in so many rounds, and remembered over ten times
# as many.
LEAD_ROUNDS = 8
LEAD_GAIN = 0.1
SIGMAS = "standard deviations"
SCORE = "CUSUM score"

Caution: TypeAlias = Literal[
    "log", "clip_and_decay", "snapshot", "skip_batches", "rollback", "stop"
]
"""What a finding can ask for that does not say that the state is bad."""


class LossVarianceSequentialState(NamedTuple):
    """Tests of the loss, trends of the gradient, the open episode."""

    loss: LossTests = LossTests()
    norm: GradNorm = GradNorm()
    episode: Episode = Episode()
    density: Density = Density()
    lead: float = 0.0
    """How far the highest loss of a rank usually lies above the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVarianceSequential:
    """Finds steps at which the loss leaves its own trend or noise.

    Three tests on the mean loss of all ranks, after its trend has been taken out:

    - outlier: a step more than ``outlier_sigmas`` above the trend;
    - shift: a CUSUM of the pre-whitened distances, for rises too small for one step;
    - variance: a CUSUM of the logarithm of the variance of successive differences.

    What is found is a notice, until the rise matters: a breach needs two outliers in a
    row or a shift that rise by ``min_rise_ratio`` of the loss, or one jump of
    ``jump_sigmas`` and ``jump_ratio``. That tells one odd batch and a restarted learning
    rate from a spike. Where single steps far up that heal by themselves belong to a run,
    it takes more of them in a row, or one twice as high. Growing noise without a rise is a
    breach that is only logged. A fall is never a breach. Gradient norms that stay three times
    above the usual ones, and gradients of which 40 % fewer elements than usual are not zero,
    are breaches that ask for milder actions of their own.

    An episode has at most one notice of each kind, one breach of each severity and mild
    action, and one recovery: when the loss has been within three sigmas of where it came from for
    ``recovery_steps``, or has settled at a new level.

    Non-finite losses belong to :class:`~slav1.detectors.NonFinite`; they are neither
    judged nor remembered here.

    Raises:
        ValueError: If a setting is out of range.

    Source:
        Page, "Continuous Inspection Schemes", Biometrika 41, 1954, for the CUSUM; OLMo 2,
        arXiv:2501.00656, for leaving outliers out of the update.
    """

    RULE: ClassVar[str] = RULE
    VARIANT: ClassVar[str] = "sequential"
    WATCHES: ClassVar[tuple[type, ...]] = (Round,)
    NUM_SAMPLES_NEEDED: ClassVar[int] = NUM_NEEDED

    arl0: float = 1e6
    """Healthy steps between two false alarms of one test, in steps."""

    outlier_sigmas: float = 8.0
    """Height above the trend that makes a step an outlier, in standard deviations."""

    jump_sigmas: float = 25.0
    """Height at which a single step can be a breach, in standard deviations."""

    jump_ratio: float = 0.5
    """Rise at which a single step can be a breach, as a share of the loss."""

    min_rise_ratio: float = 0.25
    """Smallest rise that is a breach, as a share of the loss; a smaller one is a notice.
    With 0 every rise that is statistically certain is a breach."""

    certain_sigmas: float = 100.0
    """Height at which a rise matters whatever its share, in standard deviations; for
    losses whose zero has no meaning."""

    grad_norm_action: Caution = "snapshot"
    """What is done when the gradient norm stays above four times its usual level."""

    sparsity_action: Caution = "clip_and_decay"
    """What is done when 40 % fewer elements of the gradient than usual are not zero."""

    recovery_steps: int = 5
    """How long the loss must be back before an episode ends, in steps."""

    def __post_init__(self) -> None:
        if not self.arl0 >= 100:
            raise ValueError(
                f"arl0 must be at least 100 steps, got {self.arl0}: with less the detector "
                "would find something in every healthy epoch."
            )
        if not 3 <= self.outlier_sigmas <= self.jump_sigmas <= self.certain_sigmas:
            raise ValueError(
                "outlier_sigmas, jump_sigmas and certain_sigmas must be at least 3 and in "
                f"this order, got {self.outlier_sigmas}, {self.jump_sigmas} and "
                f"{self.certain_sigmas}."
            )
        if not 0 <= self.min_rise_ratio <= self.jump_ratio:
            raise ValueError(
                "min_rise_ratio must be at least 0 and at most jump_ratio, got "
                f"{self.min_rise_ratio} and {self.jump_ratio}."
            )
        if self.recovery_steps < 1:
            raise ValueError(f"recovery_steps must be at least 1, got {self.recovery_steps}.")

    def start(self) -> LossVarianceSequentialState:
        return LossVarianceSequentialState()

    def observe(
        self, state: LossVarianceSequentialState, event: Round
    ) -> tuple[LossVarianceSequentialState, Breach | None]:
        loss, norm, episode, density, usual_lead = state
        reading = None
        mean, mean_norm = mean_loss(event), mean_grad_norm(event)
        if mean is not None:
            loss, reading = observe_loss(
                loss, mean, outlier_sigmas=self.outlier_sigmas, arl0=self.arl0
            )
        if mean_norm is not None:
            norm = heard(norm, mean_norm)
        share = mean_density(event)
        if share is not None:
            density = thinned(density, share)
        is_high = reading is not None and self._is_high(episode, reading)
        if is_high or episode.num_high:
            episode = episode._replace(num_high=episode.num_high + 1 if is_high else 0)
        before = episode
        episode, breach = self._told(episode, Look(event, reading, norm, density, usual_lead))
        has_ended = before.severity and not episode.severity
        if has_ended and reading is not None and not is_back(before, reading):
            # At its new level what has lasted for so long is the usual noise from now on.
            loss = loss._replace(noise=Noise(last=reading.loss))
        num_seen = loss.trend.num_seen
        if mean is not None and not episode.severity and num_seen % LEAD_ROUNDS == 1:
            gain = max(LEAD_GAIN, LEAD_ROUNDS / (num_seen + LEAD_ROUNDS - 1))
            usual_lead += gain * (lead(event) - usual_lead)
        return LossVarianceSequentialState(loss, norm, episode, density, usual_lead), breach

    def _told(self, episode: Episode, look: Look) -> tuple[Episode, Breach | None]:
        """Carries the episode on and says what is new about it."""
        step, reading = look.event.step, look.reading
        findings = self._findings(episode, look)
        if findings and not episode.severity:
            episode = begun_at(episode, step, reading)
        finding = news(episode, findings)
        if finding is not None:
            episode = lasted(grown(episode, finding), step, is_bad=True)
            return episode, breach_from(episode, look, finding)
        if not episode.severity or reading is None:
            return episode, None
        is_bad = bool(findings) or not is_back(episode, reading)
        episode = lasted(episode, step, is_bad=is_bad)
        is_over = step - episode.last_bad_step >= self.recovery_steps
        is_calm = abs(reading.z) < CALM_SIGMAS and not (look.norm.is_high or look.density.is_low)
        has_settled = episode.num_samples >= SETTLE_SAMPLES and is_calm
        if not is_over and not has_settled:
            return episode, None
        is_told = episode.severity > NOTICED
        end = recovery_from(episode, look, is_new_level=not is_over) if is_told else None
        return Episode(), end

    def _findings(self, episode: Episode, look: Look) -> list[Finding]:
        """Everything odd about a step."""
        found = [] if look.reading is None else self._loss_findings(episode, look.reading)
        if look.norm.is_high:
            arl0 = heavy_tail_arl0(NORM_SIGMAS)
            told = (look.norm.ratio, RISE_RATIO, "times the usual norm", arl0)
            found.append(Finding("grad_norm", CAUTIONED, *told, self.grad_norm_action))
        if look.density.is_low:
            arl0 = heavy_tail_arl0(DENSITY_SIGMAS, num_in_a_row=NUM_IN_A_ROW)
            told = (look.density.ratio, FALL_RATIO, "of the usual share", arl0)
            found.append(Finding("sparsity", CAUTIONED, *told, self.sparsity_action))
        return found

    def _loss_findings(self, episode: Episode, reading: Reading) -> list[Finding]:
        level, scale = episode.reference(reading)
        rise = reading.loss - level
        height = rise / scale
        found = []
        if self._is_jump(episode, reading) and not reading.lone.explains(rise):
            arl0 = heavy_tail_arl0(self.jump_sigmas)
            found.append(Finding("jump", BREACHED, height, self.jump_sigmas, SIGMAS, arl0))
        if episode.num_high >= reading.lone.num_needed:
            arl0 = heavy_tail_arl0(self.outlier_sigmas, num_in_a_row=NUM_IN_A_ROW)
            found.append(Finding("outliers", BREACHED, height, self.outlier_sigmas, SIGMAS, arl0))
        if reading.has_shifted:
            severity = (
                BREACHED if self._rises_by(self.min_rise_ratio, episode, reading) else NOTICED
            )
            score, limit = reading.shift, reading.shift_limit
            found.append(Finding("shift", severity, score, limit, SCORE, self.arl0))
        if reading.is_outlier and not self._is_familiar(reading, rise):
            arl0 = heavy_tail_arl0(self.outlier_sigmas)
            found.append(Finding("outlier", NOTICED, reading.z, self.outlier_sigmas, SIGMAS, arl0))
        if reading.is_loud:
            score, limit = reading.variance, reading.variance_limit
            found.append(Finding("variance", SUSPECTED, score, limit, SCORE, self.arl0))
        return found

    def _is_familiar(self, reading: Reading, rise: float) -> bool:
        """Whether single outliers are so frequent that none like this is worth a word."""
        return reading.lone.num_needed > NUM_IN_A_ROW and reading.lone.explains(rise)

    def _is_high(self, episode: Episode, reading: Reading) -> bool:
        return self._stands_out(self.outlier_sigmas, self.min_rise_ratio, episode, reading)

    def _is_jump(self, episode: Episode, reading: Reading) -> bool:
        return self._stands_out(self.jump_sigmas, self.jump_ratio, episode, reading)

    def _stands_out(self, sigmas: float, ratio: float, episode: Episode, reading: Reading) -> bool:
        """Whether a loss rises by so many sigmas, and by enough to matter."""
        level, scale = episode.reference(reading)
        is_far = reading.loss - level > sigmas * scale
        return reading.is_rise and is_far and self._rises_by(ratio, episode, reading)

    def _rises_by(self, ratio: float, episode: Episode, reading: Reading) -> bool:
        level, scale = episode.reference(reading)
        return reading.loss - level >= min(ratio * abs(level), self.certain_sigmas * scale)
