"""What a policy costs: an answer, its process, and a loop that goes on meanwhile.

The loop of the last table looks every 2 ms, as a coordinator that waits does. The same long
evaluation beside it, in a thread and in a process, shows why a policy has a process. Prints
a Markdown page.
"""

import argparse
import json
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
from _machine import heading, quantile

from slav1.contract import PolicySettings
from slav1.policy.process import PolicyProcess
from slav1.policy.rego import RegoPolicy

DOCUMENT = json.dumps(
    {
        "metrics": {
            "gpu_fragmentation_rate": 70.0,
            "step_stall_seconds": 31.0,
            "loss": 2.5,
            "grad_norm": 0.7,
            "step_time_s": 0.2,
        },
        "breach": {
            "rule": "hang",
            "rank": 1,
            "step": 70,
            "phase": "backward",
            "statistic": 12.5,
            "limit": 10.0,
            "unit": "s",
            "is_actionable": True,
            "message": "Rank 1 has made no progress for 12.5 s in backward.",
            "evidence": {"cause": "stuck", "seconds_since_progress": 12.5},
        },
        "rule": {"name": "hang", "mode": "enforce", "action": "stop", "variant": "learned"},
        "table": {"action": "stop"},
        "metadata": {"job_type": "distributed_finetune", "level": "L1", "world_size": 8},
        "history": {"breaches": 0, "rollbacks": 1, "rollbacks_within_window": 1},
    }
)
# Long where that is asked for.
LONG = """package slav1.decision
action := "stop" if { input.is_long; some i in numbers.range(1, 400000); i * input.is_long == -1 }
"""


class Handler(BaseHTTPRequestHandler):
    """Answers as a policy server does, at once."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"result":"stop"}' if self.server.is_open else b"{}"  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def times(policy: PolicyProcess, num: int) -> list[float]:
    for _ in range(100):
        policy.answer_to(DOCUMENT)
    found = []
    for _ in range(num):
        answer = policy.answer_to(DOCUMENT)
        assert answer.problem is None, answer
        assert answer.took_s is not None
        found.append(answer.took_s * 1e6)
    return found


def row(name: str, values: list[float]) -> str:
    return f"| {name} | {quantile(values, 0.5):.0f} | {quantile(values, 0.99):.0f} |"


def engine_alone(num: int) -> list[float]:
    text = Path(__file__).parents[1].joinpath("src/slav1/policy/stall.rego").read_text()
    engine, found = RegoPolicy(text, "stall.rego", None), []
    for _ in range(num):
        begin_s = time.perf_counter()
        engine.value(DOCUMENT)
        found.append((time.perf_counter() - begin_s) * 1e6)
    return found


def longest_gap_s(evaluate: Any) -> tuple[float, float]:
    """Longest pause of a loop of 2 ms beside an evaluation, and how long that took."""
    gaps, is_over = [0.0], threading.Event()

    def beat() -> None:
        last_s = time.monotonic()
        while not is_over.is_set():
            time.sleep(0.002)
            now_s = time.monotonic()
            gaps.append(now_s - last_s)
            last_s = now_s

    thread = threading.Thread(target=beat)
    thread.start()
    begin_s = time.monotonic()
    evaluate()
    took_s = time.monotonic() - begin_s
    is_over.set()
    thread.join()
    return max(gaps), took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=5000)
    num = parser.parse_args().num
    print(heading("A policy's answer: time, memory, and the loop beside it"))
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.monotonic()
        shipped = PolicyProcess.open(PolicySettings(file="slav1:stall.rego"))
        opened_s = time.monotonic() - begin_s
        print("| an answer, in microseconds | median | p99 |\n| --- | --- | --- |")
        print(row("engine alone, in the process that asks", engine_alone(num)))
        print(row("Rego file, in its own process", times(shipped, num)))
        rss_mib = psutil.Process(shipped._process.pid).memory_info().rss / 2**20  # type: ignore[union-attr]
        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        http.is_open = False  # type: ignore[attr-defined]
        threading.Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_address[1]}"
        server = PolicyProcess.open(PolicySettings(url=url, deadline_ms=2000))
        http.is_open = True  # type: ignore[attr-defined]
        print(row("server on the same machine (a stub in Python)", times(server, num)))
        print(f"\n- Its process is ready after {opened_s:.2f} s and holds {rss_mib:.0f} MiB.")
        begins_ms = []
        for _ in range(20):
            begin_s = time.monotonic()
            shipped._is_ready = True
            shipped._num_deaths = 0
            shipped.give_up()
            begins_ms.append((time.monotonic() - begin_s) * 1e3)
            while not shipped._is_ready:
                shipped.answers()
                time.sleep(0.005)
        print(
            f"- Ending it and starting the next one takes {quantile(begins_ms, 0.5):.1f} ms of the"
        )
        print(f"  loop (median of 20; longest {max(begins_ms):.1f} ms).")
        path = Path(folder) / "long.rego"
        path.write_text(LONG)
        inside = RegoPolicy(LONG, "long.rego", None)
        outside = PolicyProcess.open(PolicySettings(file=str(path), deadline_ms=2000))
        print("\n| a long evaluation | it took, s | longest pause of the loop, ms |")
        print("| --- | --- | --- |")
        for name, evaluate in (
            ("in a thread of the same process", lambda: inside.value('{"is_long": 1}')),
            ("in its own process", lambda: outside.answer_to('{"is_long": 1}')),
        ):
            gap_s, took_s = longest_gap_s(evaluate)
            print(f"| {name} | {took_s:.2f} | {gap_s * 1e3:.0f} |")
        for policy in (shipped, server, outside):
            policy.close()
        http.shutdown()


if __name__ == "__main__":
    main()
