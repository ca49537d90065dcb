"""Names of what lies beside checkpoints: files in the making, old ones, rejected ones."""

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from slav1.checkpoint.workshop import home_of, workshop_of

MANIFEST = "sla_manifest.json"
"""Name of the manifest inside a checkpoint that is a folder."""

SIDECAR = ".sla.json"
"""What is added to the name of a single file for the name of its manifest."""

REJECTED = ".rejected-"
"""What the name of a checkpoint that was set aside begins with."""

_OURS = re.compile(
    r"^\.sla-(?P<what>new|old|gone)-(?P<run>[0-9a-f]{8})-(?P<boot>[0-9a-f]{8})"
    r"-(?P<pid>\d+)-(?P<started>\d+)-(?P<number>\d+)-(?P<step>\d+)\.(?P<name>.+)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A process that writes checkpoints of a run, so that what it left can be told apart."""

    run: str
    """Digest of the run's identity, 8 hex digits."""

    boot: str
    """Digest of the boot of its machine, 8 hex digits."""

    pid: int
    """Process id."""

    started: int
    """When the process started, in milliseconds since 1970."""

    @classmethod
    def of_this_process(cls, run: str) -> "Writer":
        """This process, writing for ``run``."""
        started = round(psutil.Process().create_time() * 1000)
        return cls(run=short(run), boot=_boot(), pid=os.getpid(), started=started)

    def is_gone(self, me: "Writer") -> bool:
        """Whether this writer can't be writing any more, as ``me`` can tell."""
        if self == me:
            return False
        if self.boot != me.boot:
            # One rank at a time writes for a run; of another run's far machine we know nothing.
            return self.run == me.run
        try:
            started = round(psutil.Process(self.pid).create_time() * 1000)
        except psutil.NoSuchProcess:
            return True
        return abs(started - self.started) > 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """Something that a writer put beside a checkpoint and did not take away."""

    path: Path
    """Where it lies."""

    what: str
    """``new``: in the making, never a checkpoint. ``old``: what a newer one replaces.
    ``gone``: what is being removed."""

    writer: Writer
    """Who made it."""

    step: int
    """Step of the save that it belonged to."""

    target: Path
    """The checkpoint it belongs to."""


def place_of(path: Path) -> Path:
    """The one name of a checkpoint: links on the way to it are followed, but not itself, since
    a link is replaced."""
    return Path(os.path.realpath(path.parent)) / path.name


def short(text: str) -> str:
    """8 hex digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def beside(target: Path, what: str, writer: Writer, number: int, step: int) -> Path:
    """Path beside a checkpoint for what is being made, or is being replaced.

    The checkpoint's own name comes last, since some writers look at how a name ends.
    """
    who = f"{writer.run}-{writer.boot}-{writer.pid}-{writer.started}"
    name = f".sla-{what}-{who}-{number}-{step}.{target.name}"
    folder = _place_beside(target)
    longest = os.pathconf(target.parent, "PC_NAME_MAX") if target.parent.is_dir() else 255
    if len(os.fsencode(name + SIDECAR)) > longest:
        raise ValueError(
            f"The name {target.name} is too long: with what is put before it while it is written "
            f"it has more than the {longest} bytes that this file system allows."
        )
    return folder / name


def recognise(path: Path) -> LeftOver | None:
    """What a path beside checkpoints is, by its name; None if it is not of our making."""
    found = _OURS.match(path.name)
    if found is None:
        return None
    writer = Writer(
        run=found["run"],
        boot=found["boot"],
        pid=int(found["pid"]),
        started=int(found["started"]),
    )
    target = home_of(path.parent) / found["name"]
    return LeftOver(
        path=path, what=found["what"], writer=writer, step=int(found["step"]), target=target
    )


def rejected_name(path: Path) -> Path:
    """A free name beside a checkpoint that says it was set aside."""
    number = 1
    while True:
        suffix = f"{number}-" if number > 1 else ""
        free = _place_beside(path) / f"{REJECTED}{suffix}{path.name}"
        if not os.path.lexists(free) and not os.path.lexists(sidecar_of(free)):
            return free
        number += 1


def sidecar_of(path: Path) -> Path:
    """Where the manifest of a checkpoint of one file lies."""
    return path.with_name(path.name + SIDECAR)


@cache
def _boot() -> str:
    try:
        return short(Path("/proc/sys/kernel/random/boot_id").read_text())
    except OSError:
        return short(os.uname().nodename)


def _place_beside(target: Path) -> Path:
    workshop = workshop_of(target.parent)
    return workshop if workshop.is_dir() else target.parent
