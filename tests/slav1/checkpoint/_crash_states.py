"""Every state that a power cut may leave behind: from a recorded trace of disk calls.

The model is the weakest that POSIX allows. What was written and not flushed may be there, may
not, or may be there in part, block by block; a change of a folder that was not flushed may be
lost whatever came after it; one rename is there or not. A flush makes sure of one file's
contents or of one folder's names, and of nothing else.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slav1.checkpoint._disk import Disk

MOST_FOR_ALL_SUBSETS = 5
BLOCKS = (512, 4096)


class RecordingDisk(Disk):
    """A disk that also writes down what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.trace: list[tuple[Any, ...]] = []

    def write(self, path: Path, data: bytes) -> None:
        super().write(path, data)
        self.trace.append(("write", path, data))

    def append(self, path: Path, data: bytes) -> None:
        super().append(path, data)
        self.trace.append(("append", path, data))

    def mkdir(self, path: Path) -> None:
        path.mkdir()
        self.trace.append(("mkdir", path))

    def fsync(self, path: Path) -> None:
        super().fsync(path)
        self.trace.append(("fsync", path))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.trace.append(("rename", old, new))

    def exchange(self, one: Path, other: Path) -> bool:
        is_done = super().exchange(one, other)
        if is_done:
            self.trace.append(("exchange", one, other))
        return is_done

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.trace.append(("unlink", path))

    def rmdir(self, path: Path) -> None:
        super().rmdir(path)
        self.trace.append(("unlink", path))

    def note(self, *event: Any) -> None:
        """Puts something into the trace that is no call."""
        self.trace.append(("note", *event))


@dataclass(slots=True)
class _File:
    flushed: bytes | None = None
    now: bytes = b""


@dataclass(slots=True)
class _Folder:
    flushed: dict[str, int] = field(default_factory=dict)
    now: dict[str, int] = field(default_factory=dict)
    pending: list[dict[str, int | None]] = field(default_factory=list)
    """Changes since the last flush: what each gives to names, None for taking one away."""

    def change(self, **names: int | None) -> None:
        self.pending.append(names)
        _apply(self.now, names)


class Model:
    """A disk in memory that knows what is sure and what is not."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._nodes: list[_File | _Folder] = [_Folder()]

    def run(self, call: tuple[Any, ...]) -> None:
        """Carries one recorded call out."""
        getattr(self, f"_{call[0]}")(*call[1:])

    def states(self) -> Iterator[dict[str, bytes | None]]:
        """What may be there after a crash now: contents by relative path, None for folders."""
        for names in self._all_names():
            for contents in self._possible_contents(names):
                yield self._tree(names, contents)

    def _all_names(self, at: int = 0) -> Iterator[dict[int, dict[str, int]]]:
        """What may lie in a folder and in the folders that are then in it, by node."""
        node = self._nodes[at]
        assert isinstance(node, _Folder)
        for names in _possible_names(node):
            folders = [one for one in names.values() if isinstance(self._nodes[one], _Folder)]
            below = [list(self._all_names(one)) for one in folders]
            for combination in itertools.product(*below):
                merged = {at: names}
                for one in combination:
                    merged |= one
                yield merged

    def _possible_contents(self, names: dict[int, dict[str, int]]) -> Iterator[dict[int, bytes]]:
        reachable = set(self._reachable(names))
        dirty = {
            number: node
            for number, node in enumerate(self._nodes)
            if number in reachable and isinstance(node, _File) and node.flushed != node.now
        }
        yield {}
        yield {number: node.flushed or b"" for number, node in dirty.items()}
        for number, node in dirty.items():
            for torn in _tears(node.flushed or b"", node.now):
                yield {number: torn}

    def _reachable(self, names: dict[int, dict[str, int]], at: int = 0) -> Iterator[int]:
        yield at
        node = self._nodes[at]
        if isinstance(node, _Folder):
            for inner in names[at].values():
                yield from self._reachable(names, inner)

    def _tree(
        self, names: dict[int, dict[str, int]], contents: dict[int, bytes], at: int = 0
    ) -> dict[str, bytes | None]:
        found: dict[str, bytes | None] = {}
        node = self._nodes[at]
        assert isinstance(node, _Folder)
        for name, number in names[at].items():
            inner = self._nodes[number]
            if isinstance(inner, _File):
                found[name] = contents.get(number, inner.now)
                continue
            found[name] = None
            below = self._tree(names, contents, number)
            found |= {f"{name}/{deeper}": value for deeper, value in below.items()}
        return found

    # -- the calls ----------------------------------------------------------------------------

    def _folder(self, path: Path) -> _Folder:
        at = 0
        for part in path.relative_to(self._root).parts:
            node = self._nodes[at]
            assert isinstance(node, _Folder)
            at = node.now[part]
        node = self._nodes[at]
        assert isinstance(node, _Folder)
        return node

    def _node(self, path: Path) -> _File | _Folder:
        if path == self._root:
            return self._nodes[0]
        return self._nodes[self._folder(path.parent).now[path.name]]

    def _make(self, path: Path, node: _File | _Folder) -> None:
        self._nodes.append(node)
        self._folder(path.parent).change(**{path.name: len(self._nodes) - 1})

    def _write(self, path: Path, data: bytes) -> None:
        if path.name not in self._folder(path.parent).now:
            self._make(path, _File())
        node = self._node(path)
        assert isinstance(node, _File)
        node.now = data

    def _append(self, path: Path, data: bytes) -> None:
        exists = path.name in self._folder(path.parent).now
        node = self._node(path) if exists else None
        self._write(path, (node.now if isinstance(node, _File) else b"") + data)

    def _mkdir(self, path: Path) -> None:
        self._make(path, _Folder())

    def _fsync(self, path: Path) -> None:
        node = self._node(path)
        node.flushed = node.now if isinstance(node, _File) else dict(node.now)
        if isinstance(node, _Folder):
            node.pending.clear()

    def _rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent
        folder = self._folder(old.parent)
        folder.change(**{old.name: None, new.name: folder.now[old.name]})

    def _exchange(self, one: Path, other: Path) -> None:
        assert one.parent == other.parent
        folder = self._folder(one.parent)
        folder.change(**{one.name: folder.now[other.name], other.name: folder.now[one.name]})

    def _unlink(self, path: Path) -> None:
        self._folder(path.parent).change(**{path.name: None})

    def _note(self, *event: Any) -> None: ...


def rebuild(root: Path, state: dict[str, bytes | None]) -> None:
    """Makes a folder look as it does after the crash."""
    wipe(root)
    for name, contents in state.items():
        path = root / name
        if contents is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(contents)


def wipe(folder: Path) -> None:
    """Empties a folder."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            wipe(path)
            path.rmdir()
        else:
            path.unlink()


def _apply(names: dict[str, int], change: dict[str, int | None]) -> None:
    for name, number in change.items():
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def _possible_names(folder: _Folder) -> Iterator[dict[str, int]]:
    changes = folder.pending
    everything = range(len(changes))
    if len(changes) <= MOST_FOR_ALL_SUBSETS:
        kept_sets = [
            set(kept)
            for size in range(len(changes) + 1)
            for kept in itertools.combinations(everything, size)
        ]
    else:
        kept_sets = [set(range(end)) for end in range(len(changes) + 1)]
        kept_sets += [{one} for one in everything]
        kept_sets += [set(everything) - {one} for one in everything]
    for kept in kept_sets:
        names = dict(folder.flushed)
        for number in sorted(kept):
            _apply(names, changes[number])
        yield names


def _tears(old: bytes, new: bytes) -> Iterator[bytes]:
    yield old
    yield bytes(len(new))
    for block in BLOCKS:
        starts = range(0, len(new), block)
        before = old[: len(new)].ljust(len(new), b"\0")
        last = len(starts) - 1
        yield new[: len(starts) // 2 * block]
        for is_new in (
            [index < len(starts) // 2 for index in range(len(starts))],
            [index != last for index in range(len(starts))],
            [index != 0 for index in range(len(starts))],
            [index % 2 == 0 for index in range(len(starts))],
        ):
            yield b"".join(
                (new if is_new[index] else before)[start : start + block]
                for index, start in enumerate(starts)
            )
