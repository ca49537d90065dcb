"""Rollback: from the decision to the end of the next good step, and from the fault to it.

Each run trains a model whose weights and optimizer take ``--mebibytes`` on two ranks,
saves every five steps, gets one NaN and goes back. Prints a Markdown page.
"""

import argparse
from statistics import median

from _machine import heading
from _runs import Run, run_job

FAULT_STEP = 23
SAVE_EVERY = 5
NUM_STEPS = 34


def times(run: Run) -> tuple[float, float]:
    """Seconds from the decision, and from the fault's step, to the next good step."""
    (injected,) = run.injected
    decided_ns = next(e.time_ns for e in run.entries if e.kind == "decision")
    (restored,) = (e for e in run.entries if e.kind == "restored")
    assert restored.step is not None, "a restored line names its step"
    ends_ns = [
        int(time_ns)
        for line in run.output.splitlines()
        if line.startswith("ended ")
        for _, step, time_ns in [line.split()]
        if int(step) == restored.step + 1 and int(time_ns) > decided_ns
    ]
    return (ends_ns[0] - decided_ns) * 1e-9, (ends_ns[0] - injected.time_ns) * 1e-9


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--mebibytes", type=int, default=50)
    options = parser.parse_args()
    print(heading("Rollback in the running processes"))
    contract = {
        "non_finite": {"mode": "enforce", "action": "rollback"},
        "checkpoint": {"every_steps": SAVE_EVERY},
    }
    from_decision, from_fault = [], []
    for number in range(options.runs):
        run = run_job(
            faults=f"nan:rank={number % 2},step={FAULT_STEP}",
            limit_s=180,
            override=contract,
            ranks=2,
            steps=NUM_STEPS,
            step_ms=20,
            mebibytes=options.mebibytes,
        )
        assert run.status == 0, run.output[-3000:]
        decided_s, fault_s = times(run)
        from_decision.append(decided_s)
        from_fault.append(fault_s)
    print("| from | median s | longest s |\n| --- | --: | --: |")
    for name, seconds in (("decision", from_decision), ("fault", from_fault)):
        print(f"| {name} | {median(seconds):.2f} | {max(seconds):.2f} |")
    print(f"\n{options.runs} runs, {options.mebibytes} MiB of weights and optimizer state, DDP on")
    print("2 ranks, gloo; the end is that of the first step made again on rank 0.")


if __name__ == "__main__":
    main()
