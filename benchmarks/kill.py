"""SIGKILL of a rank to the ledger line that says so. Prints a Markdown page."""

import argparse

from _machine import heading, quantile
from _runs import run_job


def main() -> None:
    """Runs the campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    print(heading("A killed rank: SIGKILL to the ledger"))
    print("| ranks | killed | runs | median ms | p99 ms | wrong rank | not found | exit 0 |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for ranks in (2, 4):
        for killed in (0, ranks - 1):
            delays, num_wrong, num_missed, num_good = [], 0, 0, 0
            for _ in range(options.repeats):
                run = run_job(
                    faults=f"kill:rank={killed},step=30",
                    limit_s=120,
                    steps=60,
                    step_ms=20,
                    ranks=ranks,
                )
                lines = [e for e in run.entries if e.kind == "breach" and e.rule == "liveness"]
                if not lines or not run.injected:
                    num_missed += 1
                    continue
                delays.append((lines[0].time_ns - run.injected[0].time_ns) * 1e-6)
                num_wrong += lines[0].rank != killed
                num_good += run.status == 0
            print(
                f"| {ranks} | {killed} | {options.repeats} | {quantile(delays, 0.5):.0f} "
                f"| {quantile(delays, 0.99):.0f} | {num_wrong} | {num_missed} | {num_good} |"
            )


if __name__ == "__main__":
    main()
