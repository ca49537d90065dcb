"""``python -m slav1.monitor FD``: the monitor process of one node. Imports no torch."""

import contextlib
import os
import resource
import signal
import sys

import msgspec

from slav1.monitor.config import read_config
from slav1.monitor.loop import MonitorLoop

_MAX_DESCRIPTORS = 65536


def main() -> int:
    """Reads the configuration from standard input, answers through FD, watches."""
    # The job's supervisor ends us with the job; until then we have to see it out.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _raise_descriptor_limit()
    answer_fd = int(sys.argv[1])
    config = read_config(sys.stdin.buffer)
    try:
        loop = MonitorLoop(config)
    except (OSError, ValueError) as error:
        _answer(answer_fd, {"error": str(error)})
        return 1
    try:
        _answer(answer_fd, {"address": loop.address})
        loop.run()
    finally:
        loop.close()
    return 0


def _answer(fd: int, words: dict[str, str]) -> None:
    """Tells whoever started this process, and hangs up."""
    with contextlib.suppress(BrokenPipeError):
        os.write(fd, msgspec.json.encode(words))
    os.close(fd)


def _raise_descriptor_limit() -> None:
    """Strangers who hold connections open must not use up what ranks need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main())
