"""The demo's run at one moment, and the ways to draw it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from slav1.cli._demo_rings import RankNow
from slav1.phase import Phase

NUM_BAR_COLUMNS = 40
NUM_CURVE_COLUMNS = 56

_BLOCKS = "▁▂▃▄▅▆▇█"
_LEAVING = (Phase.TEARDOWN, Phase.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The run at one moment."""

    elapsed_s: float
    """Time since the demo began, in seconds."""

    num_steps: int
    """Steps the run is to make."""

    num_ranks: int
    """Processes that are to train."""

    ranks: tuple[RankNow, ...]
    """Ranks that have joined so far."""

    losses: Sequence[float]
    """Mean loss over all ranks of each step made."""

    is_ending: bool = False
    """Whether rank 0 has ended already."""

    @property
    def step(self) -> int | None:
        """Step that the slowest rank is in; None before all have joined."""
        steps = [rank.step for rank in self.ranks]
        return min(steps) if len(steps) == self.num_ranks else None

    @property
    def stage(self) -> str:
        """What is going on, in a few words."""
        if self.is_ending or (self.ranks and all(r.phase in _LEAVING for r in self.ranks)):
            return "training has ended, the processes are leaving"
        if self.step is None:
            num_joined = len(self.ranks)
            return (
                f"starting: {num_joined} of {self.num_ranks} ranks are up "
                "(each imports PyTorch and its host framework first)"
            )
        return "training"


def progress_line(picture: Picture) -> str:
    """Writes one line about where the run is."""
    if picture.stage != "training":
        return picture.stage
    loss = f"loss {picture.losses[-1]:.2f}" if picture.losses else "no loss yet"
    slowest_s = _slowest_s(picture)
    pace = "" if slowest_s is None else f", {_milliseconds(slowest_s)} a step"
    phases = ", ".join(f"rank {rank.rank} {rank.phase.name.lower()}" for rank in picture.ranks)
    return f"step {picture.step} of {picture.num_steps}, {loss}{pace}; {phases}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws values as a row of blocks, the newest at the right.

    Args:
        values: Any numbers; those that are not finite become a space.
        width: Most characters to use; values that share one are averaged.
    """
    if not values:
        return ""
    per_column = -(-len(values) // width)
    columns = [
        sum(values[at : at + per_column]) / len(values[at : at + per_column])
        for at in range(0, len(values), per_column)
    ]
    finite = [value for value in columns if math.isfinite(value)]
    if not finite:
        return " " * len(columns)
    low, high = min(finite), max(finite)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(
        _BLOCKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in columns
    )


def drawn(picture: Picture) -> RenderableType:
    """Draws the run for a terminal: bar, loss so far, and a line for each rank."""
    parts: list[RenderableType] = ["", _head(picture)]
    if picture.losses:
        first, last = picture.losses[0], picture.losses[-1]
        curve = sparkline(picture.losses, NUM_CURVE_COLUMNS)
        parts.append(f"   loss  {first:.2f} {curve} {last:.2f}")
    if picture.ranks:
        parts.append(_ranks_table(picture.ranks))
    return Group(*parts)


def _head(picture: Picture) -> RenderableType:
    elapsed = f"{picture.elapsed_s:6.1f} s"
    if picture.stage != "training":
        return f"{elapsed}  {picture.stage}"
    head = Table.grid(padding=(0, 2))
    step = picture.step or 0
    head.add_row(
        elapsed,
        f"step {step:>4} of {picture.num_steps}",
        ProgressBar(total=picture.num_steps, completed=step, width=NUM_BAR_COLUMNS),
    )
    return head


def _ranks_table(ranks: Sequence[RankNow]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for title in ("rank", "step", "phase", "loss", "step time"):
        table.add_column(title, min_width=9)
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            str(rank.step),
            rank.phase.name.lower(),
            "" if rank.loss is None else f"{rank.loss:.2f}",
            _milliseconds(rank.step_time_s),
        )
    return table


def _slowest_s(picture: Picture) -> float | None:
    times = [rank.step_time_s for rank in picture.ranks if rank.step_time_s is not None]
    return max(times, default=None)


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.0f} ms"
