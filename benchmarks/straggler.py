"""A rank that is 1.25 times slower: steps until it is named. Prints a Markdown page."""

import argparse

from _machine import heading, quantile
from _runs import run_job

START = 320


def main() -> None:
    """Runs the campaign, healthy runs included."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--step-ms", type=float, default=40)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args()
    extra_s = 0.25 * options.step_ms / 1000
    print(heading("A straggler of 1.25 times"))
    print(f"Steps of {options.step_ms:g} ms with 3 % noise; the slowdown starts at step {START}.\n")
    print("| ranks | injected | runs | named in | median steps | p95 | wrong rank | before it |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for ranks in options.ranks:
        cases = {
            "1.25x in forward": f"straggler:rank=1,step={START},where=forward,seconds={extra_s}",
            "1.25x in data": f"straggler:rank=1,step={START},where=data,seconds={extra_s}",
            "all ranks slow": f"straggler:rank=all,step={START},where=forward,seconds={extra_s}",
            "one slow step": f"sleep:rank=1,step={START},where=forward,seconds=0.5",
        }
        for name, faults in cases.items():
            delays, num_wrong, num_early = [], 0, 0
            for _ in range(options.repeats):
                run = run_job(
                    faults=faults,
                    limit_s=180,
                    steps=START + 120,
                    step_ms=options.step_ms,
                    ranks=ranks,
                )
                for entry in run.entries:
                    if entry.kind == "breach" and entry.rule == "straggler":
                        num_early += entry.step < START
                        if entry.step >= START:
                            delays.append(entry.step - START)
                            num_wrong += entry.rank != 1
            middle = f"{quantile(delays, 0.5):g}" if delays else "-"
            late = f"{quantile(delays, 0.95):g}" if delays else "-"
            print(
                f"| {ranks} | {name} | {options.repeats} | {len(delays)} | {middle} | {late} "
                f"| {num_wrong} | {num_early} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
