"""Healthy training for many real steps: how often does the contract act. Markdown."""

import argparse
from collections import Counter

from _machine import heading
from _runs import run_job

CONFIGURATIONS = (
    {"ranks": 1, "step_ms": 0.0, "noise": 0.0},
    {"ranks": 2, "step_ms": 0.0, "noise": 0.0},
    {"ranks": 2, "step_ms": 3.0, "noise": 0.2},
    {"ranks": 4, "step_ms": 1.0, "noise": 0.1},
    {"ranks": 2, "step_ms": 10.0, "noise": 0.05},
)


def main() -> None:
    """Runs every configuration for its share of the steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of configurations, from 0")
    options = parser.parse_args()
    print(heading("Healthy soak"))
    print("| ranks | step ms | noise | steps seen | decisions | breaches | notices |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    share = {0.0: 0.35, 3.0: 0.1, 1.0: 0.12, 10.0: 0.05}
    chosen = range(len(CONFIGURATIONS)) if options.only is None else options.only
    for configuration in (CONFIGURATIONS[number] for number in chosen):
        steps = int(options.steps * share[configuration["step_ms"]])
        run = run_job(limit_s=3000, steps=steps, **configuration)
        kinds = Counter(entry.kind for entry in run.entries)
        breaches = Counter(entry.rule for entry in run.entries if entry.kind == "breach")
        seen = [
            entry.evidence["num_samples"] // configuration["ranks"]
            for entry in run.entries
            if entry.kind == "verdict" and entry.rule == "non_finite"
        ]
        listed = ", ".join(f"{rule} {count}" for rule, count in breaches.items()) or "0"
        print(
            f"| {configuration['ranks']} | {configuration['step_ms']:g} "
            f"| {configuration['noise']:g} "
            f"| {sum(seen)} | {kinds['decision']} | {listed} | {kinds['notice']} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
