"""What a count of failures says about the rate behind it."""

import math

_MAX_TERMS = 10_000
_TINY = 1e-300


def beta_cdf(x: float, a: float, b: float) -> float:
    """Chance that a beta-distributed number is at most ``x``.

    Args:
        x: Between 0 and 1.
        a: First shape, above 0.
        b: Second shape, above 0.

    Source:
        The continued fraction of DLMF 8.17.22, evaluated by Lentz's method.
    """
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        # The fraction converges fast on the other side only.
        return 1.0 - beta_cdf(1.0 - x, b, a)
    log_front = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    log_front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    value, c, d = 1.0, 1.0, 0.0
    for term in range(1, _MAX_TERMS):
        m = term // 2
        if term % 2:
            part = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            part = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 / _not_zero(1.0 + part * d)
        c = _not_zero(1.0 + part / c)
        value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value


def _not_zero(number: float) -> float:
    return number if abs(number) > _TINY else _TINY


def clopper_pearson(num_good: int, num_all: int, *, confidence: float) -> tuple[float, float]:
    """One-sided bounds of a rate of success, each kept with the wanted confidence.

    Args:
        num_good: Successes.
        num_all: Tries.
        confidence: Chance that the true rate is above the lower bound, and that it is under
            the upper one, each at least this.

    Returns:
        Lower and upper bound; 0 and 1 without tries.

    Source:
        Clopper, Pearson, "The use of confidence or fiducial limits illustrated in the case
        of the binomial", Biometrika 26, 1934.
    """
    num_bad = num_all - num_good
    lower = _quantile(1.0 - confidence, num_good, num_bad + 1) if num_good else 0.0
    upper = _quantile(confidence, num_good + 1, num_bad) if num_bad else 1.0
    return lower, upper


def chance_at_least(target: float, num_good: int, num_all: int) -> float:
    """Chance that the rate of success is at least ``target``, after what was seen.

    Source:
        The prior of Jeffreys, Beta(1/2, 1/2).
    """
    return 1.0 - beta_cdf(target, num_good + 0.5, num_all - num_good + 0.5)


def _quantile(share: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if beta_cdf(middle, a, b) < share else (low, middle)
    return 0.5 * (low + high)
