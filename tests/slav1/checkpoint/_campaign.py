"""Runs that are recorded, and the judge of what a crash leaves of them."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slav1.checkpoint import Alone, CheckpointError, SaveFacts, Shelf
from slav1.checkpoint._disk import Disk
from slav1.contract.settings import CheckpointSettings

from ._crash_states import Model, RecordingDisk, rebuild, wipe

RUN = "campaign"
NUM_BYTES = 9000


class NoFlush(Disk):
    """A disk for the time after the crash: nothing crashes any more, so nothing is flushed."""

    def fsync(self, path: Path) -> None: ...


def payload(step: int, part: int = 0) -> bytes:
    """What the file of a step contains."""
    return random.Random(1000 * step + part).randbytes(NUM_BYTES)


def open_shelf(root: Path, disk: Disk, attempt: int = 0, **settings: Any) -> Shelf:
    """The shelf of a run of one rank that lies below ``root``."""
    shelf = Shelf(
        settings=CheckpointSettings(**settings),
        peers=Alone(),
        run_folder=root / "run",
        attempt=attempt,
        roots=[root],
        run=RUN,
        disk=disk,
    )
    if attempt == 0:
        # What this shelf leaves has to look as if its process had ended.
        shelf._line.writer = replace(shelf._line.writer, pid=2**22 + 1)
    return shelf


def as_file(disk: RecordingDisk, step: int) -> Callable[[Path], None]:
    """A host's writer of one file."""
    return lambda path: disk.write(path, payload(step))


def as_folder(disk: RecordingDisk, step: int) -> Callable[[Path], None]:
    """A host's writer of a folder with a folder in it."""

    def write(path: Path) -> None:
        disk.mkdir(path)
        disk.write(path / "model.bin", payload(step, 0))
        disk.mkdir(path / "parts")
        disk.write(path / "parts" / "shard_0.bin", payload(step, 1))

    return write


def save(shelf: Shelf, disk: RecordingDisk, name: str, step: int, *, root: Path) -> None:
    """Saves one step, and notes in the trace when that is said to be done."""
    is_file = name.endswith(".ckpt")
    write = (as_file if is_file else as_folder)(disk, step)
    kind = "replicated" if is_file else "sharded"
    shelf.save(root / name, write, SaveFacts(step=step, host="test", kind=kind))
    disk.note("acknowledged", name, step)


def over_one_file(root: Path, disk: RecordingDisk) -> None:
    """Saves over the same file name again and again."""
    shelf = open_shelf(root, disk)
    for step in (10, 20, 30):
        save(shelf, disk, "last.ckpt", step, root=root)


def over_one_folder(root: Path, disk: RecordingDisk) -> None:
    """Saves over the same folder name again and again."""
    shelf = open_shelf(root, disk)
    for step in (10, 20, 30):
        save(shelf, disk, "last", step, root=root)


def several_generations(root: Path, disk: RecordingDisk) -> None:
    """Saves files and folders under new names and removes old ones."""
    shelf = open_shelf(root, disk, keep=1)
    for step in (10, 20, 30, 40):
        save(shelf, disk, f"step-{step}", step, root=root)
        save(shelf, disk, f"step-{step}.ckpt", step, root=root)
        shelf.prune(root)


RUNS = {run.__name__: run for run in (over_one_file, over_one_folder, several_generations)}


class NoExchange(RecordingDisk):
    """A file system that can't swap two names."""

    def exchange(self, one: Path, other: Path) -> bool:
        return False


@dataclass(slots=True)
class Outcome:
    """What a campaign found."""

    num_states: int = 0
    violations: list[str] = field(default_factory=list)


def try_all(
    root: Path,
    run: Callable[[Path, RecordingDisk], None],
    disk: RecordingDisk,
    *,
    share: float = 1.0,
    stop_at: int | None = None,
) -> Outcome:
    """Records a run, then judges every state that a crash may leave of it.

    Args:
        root: Empty folder.
        run: What to record.
        disk: Records; may break rules on purpose.
        share: Part of the states to judge, drawn at random with a fixed seed.
        stop_at: Ends after so many violations.
    """
    run(root, disk)
    trace = list(disk.trace)
    outcome = Outcome()
    for state, acknowledged, prefix in _states(root, trace, share):
        rebuild(root, state)
        outcome.num_states += 1
        if found := judge(root, acknowledged):
            outcome.violations.append(f"after call {prefix} {trace[prefix - 1][:2]}: {found}")
            if stop_at is not None and len(outcome.violations) >= stop_at:
                break
    wipe(root)
    return outcome


def judge(root: Path, acknowledged: dict[str, int]) -> str | None:
    """What is wrong with what a new start finds; None if nothing is.

    Args:
        root: Folder after the crash.
        acknowledged: Last step that was said to be saved, by name.
    """
    shelf = open_shelf(root, NoFlush(), attempt=1)
    in_place = {name: step for name, step in acknowledged.items() if name.startswith("last")}
    for name, step in in_place.items():
        if found := _judge_name(shelf, root / name, step):
            return found
    return _judge_choice(shelf, max(acknowledged.values(), default=-1))


def _judge_name(shelf: Shelf, path: Path, step: int) -> str | None:
    try:
        manifest = shelf.check(path)
    except CheckpointError as error:
        return f"{path.name} can't be loaded: {error}"
    if manifest is None or manifest.step < step:
        return f"{path.name} is {manifest and manifest.step}, {step} was acknowledged"
    if not _is_intact(path, manifest.step):
        return f"{path.name} verifies and has other bytes than step {manifest.step}"
    return None


def _judge_choice(shelf: Shelf, last: int) -> str | None:
    try:
        choice = shelf.choose()
    except CheckpointError as error:
        return f"nothing can be chosen: {error}"
    if choice is None:
        return None if last < 0 else f"nothing was found, {last} was acknowledged"
    if choice.step < last:
        return f"step {choice.step} was chosen, {last} was acknowledged"
    if not _is_intact(choice.path, choice.step):
        return f"{choice.path.name} was chosen and has other bytes than step {choice.step}"
    return None


def _is_intact(path: Path, step: int) -> bool:
    if path.is_file():
        return path.read_bytes() == payload(step)
    parts = [path / "model.bin", path / "parts" / "shard_0.bin"]
    return [part.read_bytes() for part in parts] == [payload(step, 0), payload(step, 1)]


def _states(
    root: Path, trace: list[tuple[Any, ...]], share: float
) -> Iterator[tuple[dict[str, bytes | None], dict[str, int], int]]:
    model = Model(root)
    acknowledged: dict[str, int] = {}
    seen: set[Any] = set()
    draw = random.Random(0)
    for prefix, call in enumerate(trace, start=1):
        model.run(call)
        if call[:2] == ("note", "acknowledged"):
            acknowledged[call[2]] = call[3]
        for state in model.states():
            key = (frozenset(state.items()), frozenset(acknowledged.items()))
            if key in seen:
                continue
            seen.add(key)
            if draw.random() < share:
                yield state, dict(acknowledged), prefix
