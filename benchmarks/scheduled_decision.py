"""The scheduled decision on real ranks: do all act at the same step, and how soon.

Each rank is a process of a gloo group that all-reduces each step after a pause of random
length, while other processes keep the processor busy. This process is their monitor: it
decides again and again, at random moments, at last to stop.

    python benchmarks/scheduled_decision.py --ranks 2 4 --decisions 2000
"""

import argparse
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from slav1.coordinator.agreement import Agreement, Effects, Hold, Outcome, Release
from slav1.decision import Action
from slav1.monitor.hold import acknowledged_step, has_carried_out, hold, publish, release
from slav1.recorder.command import CommandReader, Words
from slav1.recorder.layout import HEADER_BYTES, Word

START_LIMIT_S = 120.0
DECISION_LIMIT_S = 60.0
END_LIMIT_S = 60.0
LOOK_EVERY_S = 0.2e-3
STEPS_TO_THE_END = 100
"""Steps that ranks go on after the last decision if it is not to stop: more than ranks
can run until all have read so."""
MEAN_PAUSE_S = 1e-3
"""Pauses of ranks between two steps and of the monitor between two decisions, in seconds."""
LONGEST_PAUSE_S = 10e-3
BURN = "while True: sum(range(10_000))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What many decisions on one group of ranks came to."""

    num_ranks: int
    """Ranks that had to agree."""

    latencies_s: tuple[float, ...]
    """From the proposal to the action of the last rank, for each decision, in seconds."""

    num_apart: int
    """Decisions that ranks carried out at different steps, or some not at all."""

    step_s: float
    """Mean time of a step, in seconds."""

    @property
    def median_s(self) -> float:
        """Median latency, in seconds."""
        return statistics.median(self.latencies_s)

    @property
    def p99_s(self) -> float:
        """Latency that one in a hundred decisions exceeds, in seconds."""
        return statistics.quantiles(self.latencies_s, n=100, method="inclusive")[98]


class PublishesTheStepJustEnded(CommandReader):
    """The wrong variant: says which step it leaves, not which one it enters."""

    def at_boundary(self, step: int) -> Action | None:
        self._words[Word.STEP] = step
        return self._decide(step) if self._words[Word.HOLD] else None


def measure(
    num_ranks: int,
    num_decisions: int,
    *,
    num_burners: int = 1,
    is_wrong: bool = False,
    seed: int = 0,
) -> Measurement:
    """Starts ranks, decides so many times, and compares what they wrote down.

    Args:
        num_ranks: Ranks to start.
        num_decisions: Decisions to make, the last of them to stop.
        num_burners: Processes that do nothing but use the processor.
        is_wrong: Whether ranks use the variant that is known to disagree.
        seed: Of all random pauses.

    Returns:
        Latencies and the number of decisions that ranks took apart.

    Raises:
        TimeoutError: If ranks did not start, agree or end in time: a deadlock.
        RuntimeError: If a rank ended with an error.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        words = [stack.enter_context(_block(folder, rank)) for rank in range(num_ranks)]
        for _ in range(num_burners):
            stack.enter_context(_process([sys.executable, "-c", BURN]))
        me = str(Path(__file__).resolve())
        ranks = [
            stack.enter_context(
                _process(
                    [sys.executable, me, "--as-rank", str(rank), "--ranks", str(num_ranks)]
                    + ["--folder", str(folder), "--seed", str(seed)]
                    + ["--wrong"] * is_wrong
                )
            )
            for rank in range(num_ranks)
        ]
        _await(lambda: all(w[Word.STEP] > 0 for w in words), ranks, START_LIMIT_S, "started")
        # Ranks that disagree about a stop would leave each other in the lurch.
        last = Action.SNAPSHOT if is_wrong else Action.STOP
        proposed_s = _Monitor(words, ranks, seed).decide(num_decisions, last)
        end_step = acknowledged_step(words) + STEPS_TO_THE_END
        for of_rank in words:
            of_rank[Word.ENDED] = end_step
        _await(lambda: all(rank.poll() is not None for rank in ranks), ranks, END_LIMIT_S, "ended")
        return _compare(folder, num_ranks, proposed_s)


class _Monitor:
    """Agreement and node in one, as the monitor of a job on one node."""

    def __init__(
        self, words: Sequence[Words], ranks: Sequence[subprocess.Popen[bytes]], seed: int
    ) -> None:
        self._words = words
        self._ranks = ranks
        self._draw = random.Random(f"monitor {seed}")
        self._agreement = Agreement({"node": range(len(words))})

    def decide(self, num_decisions: int, last: Action) -> list[float]:
        """Makes decisions one by one; returns when each was proposed, in seconds."""
        proposed_s = []
        for number in range(1, num_decisions + 1):
            time.sleep(_pause_s(self._draw))
            action = last if number == num_decisions else Action.SNAPSHOT
            proposed_s.append(time.monotonic())
            self._perform(
                self._agreement.propose(action, rule="benchmark", rank=None, reason="Measured.")
            )
            _await(self._is_over, self._ranks, DECISION_LIMIT_S, f"carried out decision {number}")
        return proposed_s

    def _is_over(self) -> bool:
        current = self._agreement.current
        if current is None:
            return True
        for rank, words in enumerate(self._words):
            if has_carried_out(words, current.number):
                self._perform(self._agreement.on_carried_out(rank, current.number))
        return self._agreement.current is None

    def _perform(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Hold):
                hold(self._words, effect.number)
                step = acknowledged_step(self._words)
                self._perform(self._agreement.on_acknowledge("node", effect.number, step))
            elif isinstance(effect, Release):
                release(self._words, effect.number)
            elif not isinstance(effect, Outcome):
                decision = effect.decision
                assert decision.step is not None, "a schedule names its step"
                publish(self._words, decision.number, decision.step, decision.action)


def run_rank(rank: int, num_ranks: int, folder: Path, seed: int, *, is_wrong: bool) -> None:
    """Trains until told to stop, and writes down when it did what."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=num_ranks
    )
    draw, monitor = random.Random(f"{rank} {seed}"), os.getppid()
    gradient, acted, step, started_s = torch.ones(1_000), [], 0, time.monotonic()
    with _block(folder, rank) as words:
        kind = PublishesTheStepJustEnded if is_wrong else CommandReader
        reader = kind(words, is_monitor_alive=lambda: os.getppid() == monitor)
        action = None
        while action is not Action.STOP and step < (words[Word.ENDED] or step + 1):
            if os.getppid() != monitor:
                return
            time.sleep(_pause_s(draw))
            dist.all_reduce(gradient)
            gradient /= num_ranks
            action = reader.at_boundary(step)
            if action is not None:
                acted.append((reader.number, step, time.monotonic()))
                reader.confirm()
            step += 1
    step_s = (time.monotonic() - started_s) / step
    (folder / f"{rank}.json").write_text(json.dumps({"acted": acted, "step_s": step_s}))
    dist.destroy_process_group()


def _compare(folder: Path, num_ranks: int, proposed_s: list[float]) -> Measurement:
    records = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_ranks)]
    latencies_s, num_apart = [], 0
    for number, started_s in enumerate(proposed_s, start=1):
        actions = [(s, t) for record in records for n, s, t in record["acted"] if n == number]
        steps = {step for step, _ in actions}
        num_apart += len(steps) != 1 or len(actions) != num_ranks
        latencies_s.append(max(acted_s for _, acted_s in actions) - started_s)
    return Measurement(
        num_ranks=num_ranks,
        latencies_s=tuple(latencies_s),
        num_apart=num_apart,
        step_s=statistics.mean(record["step_s"] for record in records),
    )


def _pause_s(draw: random.Random) -> float:
    return min(draw.expovariate(1 / MEAN_PAUSE_S), LONGEST_PAUSE_S)


@contextmanager
def _block(folder: Path, rank: int) -> Iterator[memoryview]:
    """The words of a rank's block in a file that trainer and monitor map."""
    with (
        (folder / f"{rank}.bin").open("a+b") as file,
        mmap.mmap(file.fileno(), file.truncate(HEADER_BYTES)) as mapped,
        memoryview(mapped) as view,
        view.cast("q") as words,
    ):
        yield words


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _await(
    is_so: Callable[[], bool], ranks: Sequence[subprocess.Popen[bytes]], limit_s: float, what: str
) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        failed = [rank for rank, process in enumerate(ranks) if process.poll()]
        if failed:
            raise RuntimeError(f"Ranks {failed} ended with an error before all had {what}.")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"Not all of {len(ranks)} ranks have {what} within {limit_s:g} s.")
        time.sleep(LOOK_EVERY_S)


def _table(measurements: Sequence[tuple[str, Measurement]]) -> str:
    rows = [
        f"| {m.num_ranks} | {name} | {len(m.latencies_s)} | {m.num_apart} | {1e3 * m.step_s:.1f} | "
        f"{1e3 * m.median_s:.1f} | {1e3 * m.p99_s:.1f} | {1e3 * max(m.latencies_s):.1f} |"
        for name, m in measurements
    ]
    names = "ranks, published, decisions, ranks apart, step (ms), median (ms), p99 (ms), max (ms)"
    head = f"| {names.replace(', ', ' | ')} |"
    return "\n".join([head, "| --: | --- | --: | --: | --: | --: | --: | --: |", *rows])


def main() -> None:
    """Measures and prints a table; fails if ranks were ever apart."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--decisions", type=int, default=2_000)
    parser.add_argument("--burners", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--as-rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--wrong", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_rank is not None:
        run_rank(given.as_rank, given.ranks[0], given.folder, given.seed, is_wrong=given.wrong)
        return
    # The ranks and the tests, which load this file by its path, do without.
    from _machine import heading

    top, measured = heading("Scheduled decision: same step on all ranks, and how soon"), []
    for num_ranks in given.ranks:
        for name, is_wrong in (("step entered", False), ("step just ended (wrong)", True)):
            num_decisions = given.decisions // 10 if is_wrong else given.decisions
            result = measure(
                num_ranks,
                num_decisions,
                num_burners=given.burners,
                is_wrong=is_wrong,
                seed=given.seed,
            )
            measured.append((name, result))
    print(f"{top}- Busy processes beside: {given.burners}\n\n{_table(measured)}")
    sys.exit(any(m.num_apart for name, m in measured if name == "step entered"))


if __name__ == "__main__":
    main()
