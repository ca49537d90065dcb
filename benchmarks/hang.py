"""Hang to ledger entry: how soon, and is it the right rank and the right reason.

Each run injects several hangs that end by themselves, so that one run gives many
incidents; the contract observes. Prints a Markdown page.
"""

import argparse
from collections import defaultdict

from _machine import heading, quantile
from _runs import Injected, run_job

from slav1.ledger import Entry

CASES = (
    ("hang", "forward"),
    ("hang_gil", "forward"),
    ("stop", "forward"),
    ("hang", "data"),
    ("busy", "forward"),
    ("hang", "backward"),
    ("hang_gil", "backward"),
)
RIGHT_CAUSES = {
    "hang": ("stuck",),
    "hang_gil": ("stuck",),
    "busy": ("stuck",),
    "stop": ("process_stopped",),
}
SECONDS = 3.5
NUM_PER_RUN = 4


def plan(number: int, gap: int) -> tuple[str, int]:
    """Faults of one run, and how many.

    Four of the cases, ranks in turn: each stall makes the other rank stall too, and one
    that comes again and again is learned as usual.
    """
    faults, step = [], 60
    for index in range(NUM_PER_RUN):
        kind, where = CASES[(number * NUM_PER_RUN + index) % len(CASES)]
        rank = (number + index) % 2
        faults.append(f"{kind}:rank={rank},step={step},where={where},seconds={SECONDS}")
        step += gap
    return ";".join(faults), step


def matching(entries: list[Entry], fault: Injected) -> Entry | None:
    """The first breach after a fault, while it lasted."""
    for entry in entries:
        late_s = (entry.time_ns - fault.time_ns) * 1e-9
        if entry.kind == "breach" and entry.rule == "hang" and 0 <= late_s <= SECONDS + 0.5:
            return entry
    return None


def main() -> None:
    """Runs the campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[20, 50, 100, 200])
    options = parser.parse_args()
    print(heading("Hang to ledger entry"))
    delays, wrong = defaultdict(list), defaultdict(lambda: [0, 0, 0])
    num_missed = num_false = 0
    for step_ms in options.step_ms:
        for number in range(options.repeats):
            gap = max(12, int(1500 / step_ms))
            faults, last_step = plan(number, gap)
            run = run_job(
                faults=faults,
                limit_s=180,
                override={"mode": "observe", "liveness": {"mode": "observe"}},
                steps=last_step + 10,
                step_ms=step_ms,
                ranks=2,
            )
            found = set()
            for fault in run.injected:
                entry = matching(run.entries, fault)
                where = fault.fault.split("where=")[1].split(",")[0]
                case = f"{fault.kind} in {where}"
                if entry is None:
                    num_missed += 1
                    continue
                found.add(entry.time_ns)
                delays[step_ms].append((entry.time_ns - fault.time_ns) * 1e-9)
                delays[case].append(delays[step_ms][-1])
                causes = ("data_loader",) if where == "data" else RIGHT_CAUSES[fault.kind]
                wrong[case][0] += 1
                wrong[case][1] += entry.rank != fault.rank
                wrong[case][2] += entry.evidence.get("cause") not in causes
            num_false += sum(
                entry.kind == "breach" and entry.rule == "hang" and entry.time_ns not in found
                for entry in run.entries
            )
    print("| case | injected | median s | p99 s | wrong rank | wrong reason |")
    print("| --- | --- | --- | --- | --- | --- |")
    for case, (count, rank, cause) in wrong.items():
        values = delays[case]
        print(
            f"| {case} | {count} | {quantile(values, 0.5):.2f} | {quantile(values, 0.99):.2f} "
            f"| {rank} | {cause} |"
        )
    for step_ms in options.step_ms:
        values = delays[step_ms]
        print(
            f"| all, {step_ms:g} ms steps | {len(values)} | {quantile(values, 0.5):.2f} "
            f"| {quantile(values, 0.99):.2f} | | |"
        )
    print(f"\nNot found: {num_missed}. Breaches that belong to no injected hang: {num_false}.")


if __name__ == "__main__":
    main()
