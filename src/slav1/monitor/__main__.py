"""``python -m slav1.monitor``: the monitor process of one node. Imports no torch."""

import contextlib
import os
import signal
import sys

import msgspec

from slav1.monitor.config import MonitorConfig
from slav1.monitor.loop import MonitorLoop


def main() -> int:
    """Reads the configuration from standard input, answers with the address, watches."""
    # The job's supervisor ends us with the job; until then we have to see it out.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=MonitorConfig)
    try:
        loop = MonitorLoop(config)
    except (OSError, ValueError) as error:
        _answer({"error": str(error)})
        return 1
    try:
        _answer({"address": loop.address})
        loop.run()
    finally:
        loop.close()
    return 0


def _answer(words: dict[str, str]) -> None:
    """Writes the one line that the starter waits for, and lets go of the pipe."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, msgspec.json.encode(words) + b"\n")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.close(quiet)


if __name__ == "__main__":
    sys.exit(main())
