"""Pairs of trainings, with and without the contract in turn: started, and put into a table."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from statistics import mean, median

from _machine import quantile
from _runs import scratch


def measure(
    script: str, ranks: int, step_ms: float, steps: int, pairs: int, *more: str
) -> dict[str, list[float]]:
    """Runs the job of a benchmark in processes of its own; seconds of a step by name."""
    with scratch() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        command = [sys.executable, script, "--job", f"--ranks={ranks}", f"--step-ms={step_ms}"]
        command += [f"--steps={steps}", f"--pairs={pairs}", f"--run-dir={folder}", *more]
        common = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        common |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        probe.close()
        places = [{"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(ranks)]
        processes = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=common | (place if ranks > 1 else {}),
            )
            for place in places
        ]
        outputs = [process.communicate(timeout=1800)[0] for process in processes]
    return json.loads(outputs[0].splitlines()[-1])


def print_pairs(script: str, cases: Iterable[tuple[int, float, int, int]], *more: str) -> None:
    """Prints what a step takes more. A case: ranks, milliseconds of a step, steps, pairs; jobs
    get further options."""
    print("| ranks | step | pairs | without ms | with ms | median us | median % | p10-p90 us |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for ranks, step_ms, steps, pairs in cases:
        seen = measure(script, ranks, step_ms, steps, pairs, *more)
        both = list(zip(seen["without"], seen["with"], strict=True))
        us = [(b - a) * 1e6 for a, b in both]
        shares = [(b - a) / a * 100 for a, b in both]
        print(
            f"| {ranks} | {step_ms or 'none'} | {pairs} | {mean(seen['without']) * 1e3:.3f} "
            f"| {mean(seen['with']) * 1e3:.3f} | {median(us):.0f} | {median(shares):.2f} "
            f"| {quantile(us, 0.1):.0f} to {quantile(us, 0.9):.0f} |",
            flush=True,
        )
