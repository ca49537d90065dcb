"""What every result page says about where its numbers come from."""

import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "lightning", "accelerate", "pyzmq", "msgspec")


def heading(title: str) -> str:
    """Returns the top of a result page: title, date, machine, versions, command."""
    processor = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return (
        f"# {title}\n\n"
        f"- Date: {time.strftime('%Y-%m-%d')}\n"
        f"- Machine: {len(os.sched_getaffinity(0))} cores, {processor}, {platform.system()} "
        f"{platform.release()}\n"
        f"- Versions: Python {platform.python_version()}, {versions}\n"
        f"- Command: `python benchmarks/{command}`\n"
        f"- Load average at the start: {os.getloadavg()[0]:.1f}\n"
    )


def quantile(values: list[float], share: float) -> float:
    """The value below which ``share`` of all lie, nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
