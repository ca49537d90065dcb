"""What the simulations print: tables, and bounds on rates that were counted."""

import math
from collections.abc import Iterable, Sequence


def upper_bound(count: int, exposure: float) -> float:
    """One-sided 95 % bound on a Poisson rate, by halving."""
    low, high = 0.0, count + 10.0 * math.sqrt(count + 1.0) + 10.0
    while high - low > 1e-6:
        mean = (low + high) / 2.0
        below = sum(
            math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)
        )
        low, high = (mean, high) if below > 0.05 else (low, mean)
    return high / exposure


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints one in Markdown."""
    print(f"\n### {title}\n\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)
