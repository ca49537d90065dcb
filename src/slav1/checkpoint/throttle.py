"""Slowing checkpoint writes that run beside training, by whatever means works here."""

import math
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL, c_int, c_int64, get_errno
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from time import monotonic, sleep

PIECE_BYTES = 8 << 20
"""Bytes between two pauses of a writer that slows itself."""

MEASURED_BYTES = 8 << 20
"""Smallest file whose flush tells how fast the disk is, in bytes."""

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "s390x": 282}
_WHO_IS_A_THREAD = 1
_CLASS_SHIFT = 13
_IDLE = 3 << _CLASS_SHIFT
_BEST_EFFORT = 0
_HONOURS_PRIORITY = ("bfq",)
_WRITE_AND_WAIT = 7


class Means(Enum):
    """How a writer can be slowed."""

    WEIGHT = "io.weight"
    """The weight of this job's cgroup against others on the disk."""

    PRIORITY = "I/O priority"
    """Idle priority of the writing thread: it goes last."""

    RATE = "rate limit"
    """Pauses of the writer's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How writes below one folder are slowed, and why in no better way."""

    means: Means
    """How."""

    why: str
    """What was found about the disk and the cgroup, in words."""

    weight_file: Path | None = None
    """File of the weight, if that is the means."""


def way_for(folder: Path, *, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> Way:
    """Finds out by what means writes below a folder can be slowed.

    Only means that have an effect count: a weight needs a controller that is on, a disk that
    heeds it and a cgroup of our own that may be written; a priority needs a scheduler that
    heeds it.

    Args:
        folder: Where the writes go; may be made later.
        sys: Where sysfs is mounted.
        proc: Where procfs is mounted.
    """
    while not folder.exists():
        folder = folder.parent
    device = _device(folder, sys)
    if device is None:
        return Way(means=Means.RATE, why=f"{folder} lies on no disk of this machine")
    scheduler = _scheduler(device)
    weight_file, why_no_weight = _weight_file(device, scheduler, sys, proc)
    if weight_file is not None:
        return Way(means=Means.WEIGHT, why=why_no_weight, weight_file=weight_file)
    if scheduler in _HONOURS_PRIORITY and platform.machine() in _IOPRIO_SET:
        why = f"{why_no_weight}; scheduler {scheduler} heeds priorities"
        return Way(means=Means.PRIORITY, why=why)
    why = f"{why_no_weight}; scheduler {scheduler or 'none'} heeds no priorities of writes"
    return Way(means=Means.RATE, why=why)


def _device(folder: Path, sys: Path) -> Path | None:
    number = folder.stat().st_dev
    device = sys / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
    if not device.exists():
        return None
    device = device.resolve()
    # A partition has no queue of its own.
    return device if (device / "queue").is_dir() else device.parent


def _scheduler(device: Path) -> str:
    try:
        names = (device / "queue" / "scheduler").read_text()
    except OSError:
        return ""
    return names.partition("[")[2].partition("]")[0]


def _weight_file(device: Path, scheduler: str, sys: Path, proc: Path) -> tuple[Path | None, str]:
    """The file of our cgroup's weight, if writing it has an effect; and what was found."""
    mounts = (sys / "fs" / "cgroup", sys / "fs" / "cgroup" / "unified")
    root = next((each for each in mounts if (each / "cgroup.controllers").exists()), None)
    lines = (proc / "self" / "cgroup").read_text().splitlines()
    ours = next((line[3:] for line in lines if line.startswith("0::")), None)
    if root is None or ours is None:
        return None, "no cgroup v2 here"
    if ours == "/":
        return None, "this process is in the root cgroup, which has no weight"
    file = root / ours.lstrip("/") / "io.weight"
    if not file.exists():
        return None, "the io controller is not on for our cgroup"
    if not os.access(file, os.W_OK):
        return None, "the weight of our cgroup can't be written"
    if scheduler != "bfq" and not _has_cost_model(root, device):
        return None, f"neither scheduler {scheduler or 'none'} nor io.cost heeds weights"
    return file, f"the weight in {file} has effect"


def _has_cost_model(root: Path, device: Path) -> bool:
    try:
        number = (device / "dev").read_text().strip()
        lines = (root / "io.cost.qos").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith(f"{number} ") and "enable=1" in line for line in lines)


class Throttle:
    """Slows saves in the background while the contract asks for it."""

    def __init__(
        self, wanted_percent: Callable[[], int], say: Callable[[Way, int], None] | None = None
    ) -> None:
        """Starts without slowing anything.

        Args:
            wanted_percent: Tells how much of its speed a writer shall keep, now; 100 is all.
            say: Told when writes begin to be slowed: how, and to how many percent.
        """
        self._wanted_percent = wanted_percent
        self._say = say
        # Of the one save that runs; its file may be flushed by a thread of its own.
        self._percent = 100
        self._told_percent = 100
        self._usual_bytes_per_s = math.inf

    @contextmanager
    def in_background(self, folder: Path) -> Iterator[None]:
        """Around a save that runs beside training, in the thread that writes.

        Args:
            folder: Where it is written.
        """
        percent = self._wanted_percent()
        if percent >= 100:
            self._told_percent = 100
            yield
            return
        way = way_for(folder)
        try:
            undo = _begin(way, percent)
        except OSError as error:
            # The other ranks wait for this one's save, slowed or not.
            why = f"{way.why}, but {way.means.value} can't be set: {error}"
            way = Way(means=Means.RATE, why=why)
            undo = _begin(way, percent)
        if self._say is not None and percent != self._told_percent:
            self._say(way, percent)
        self._told_percent = percent
        self._percent = percent if way.means is Means.RATE else 100
        try:
            yield
        finally:
            self._percent = 100
            undo()

    def fsync(self, file: int) -> None:
        """Brings a file to the medium, with pauses while the writer is to slow itself.

        Args:
            file: Its descriptor.

        Raises:
            OSError: If it can't be written; give the file up then.
        """
        percent = self._percent
        num_bytes = os.fstat(file).st_size
        if percent < 100:
            flush_slowly(file, percent, self._usual_bytes_per_s)
            os.fsync(file)
            return
        began_s = monotonic()
        os.fsync(file)
        if num_bytes >= MEASURED_BYTES and self._told_percent == 100:
            self._usual_bytes_per_s = num_bytes / max(monotonic() - began_s, 1e-6)


def flush_slowly(
    file: int,
    percent: int,
    usual_bytes_per_s: float = math.inf,
    pause: Callable[[float], object] = sleep,
) -> None:
    """Writes a file's cached pages piece by piece, with rests between them.

    Each piece is followed by a rest in proportion to what it took. A disk that was allowed to
    catch its breath may be faster for it, and so may the writer; so it is held to its share of
    the usual speed as well.

    Args:
        file: Its descriptor.
        percent: Share of its speed to keep, above 0.
        usual_bytes_per_s: Speed without rests, measured before; infinite if unknown.
        pause: Waits so many seconds.

    Raises:
        OSError: If it can't be written.
    """
    call = CDLL(None, use_errno=True).sync_file_range
    num_bytes, first_s = os.fstat(file).st_size, monotonic()
    for start in range(0, num_bytes, PIECE_BYTES):
        began_s = monotonic()
        if call(c_int(file), c_int64(start), c_int64(PIECE_BYTES), c_int(_WRITE_AND_WAIT)) != 0:
            number = get_errno()
            raise OSError(number, os.strerror(number))
        now_s = monotonic()
        done = min(start + PIECE_BYTES, num_bytes)
        until_s = first_s + done * 100 / (usual_bytes_per_s * percent)
        pause(max(until_s - now_s, (now_s - began_s) * (100 - percent) / percent))


def _begin(way: Way, percent: int) -> Callable[[], object]:
    """Starts to slow this thread; returns what ends that."""
    if way.means is Means.WEIGHT and way.weight_file is not None:
        file = way.weight_file
        before = file.read_text().split()[1]
        if before == str(percent):
            # Another rank of this cgroup is at it, and puts back what was before.
            return lambda: None
        file.write_text(f"default {percent}")
        return lambda: file.write_text(f"default {before}")
    if way.means is Means.PRIORITY:
        _set_priority(_IDLE)
        return lambda: _set_priority(_BEST_EFFORT)
    return lambda: None


def _set_priority(value: int) -> None:
    libc = CDLL(None, use_errno=True)
    if libc.syscall(_IOPRIO_SET[platform.machine()], _WHO_IS_A_THREAD, 0, value) != 0:
        number = get_errno()
        raise OSError(number, os.strerror(number))
