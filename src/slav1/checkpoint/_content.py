"""Whether what was read back holds the tensors that were in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slav1.checkpoint.digests import Algorithm, new_hash
from slav1.checkpoint.verify import member_path

KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The tensors that one rank found in its share of the files."""

    keys: frozenset[bytes] = frozenset()
    """One short key for each name and fingerprint."""

    names: frozenset[str] = field(default_factory=frozenset)
    """The names alone."""

    algorithm: Algorithm = "xxh3"
    """Digest of the fingerprints."""

    @classmethod
    def read(cls, path: Path, members: Sequence[str], algorithm: Algorithm) -> "Content":
        """Reads every tensor in some members of a checkpoint."""
        # Level `content` is only for callers with tensors, so with torch.
        from slav1.checkpoint.file_tensors import read_tensors
        from slav1.checkpoint.fingerprints import fingerprint

        keys, names = set(), set()
        for member in members:
            for name, tensor in read_tensors(member_path(path, member)) or ():
                keys.add(_key(name, fingerprint(tensor, algorithm)))
                names.add(name)
        return cls(keys=frozenset(keys), names=frozenset(names), algorithm=algorithm)

    def as_plain(self) -> dict[str, Any]:
        """What the other ranks need to know."""
        return {"tensors": b"".join(sorted(self.keys))}

    def compare(self, wanted: Mapping[str, str], found: Sequence[Mapping[str, Any]]) -> None:
        """Looks for what this rank had in memory in what all ranks found.

        Args:
            wanted: Fingerprints by name, taken before the write.
            found: What :meth:`as_plain` gave on every rank.

        Raises:
            ValueError: If a tensor is missing or has other contents.
        """
        keys = {
            one["tensors"][start : start + KEY_BYTES]
            for one in found
            for start in range(0, len(one["tensors"]), KEY_BYTES)
        }
        lost = [name for name, mark in wanted.items() if _key(name, mark) not in keys]
        if not lost:
            return
        there = [name for name in lost if name in self.names]
        what = "has other contents in the file than in memory" if there else "is in no file"
        raise ValueError(
            f"tensor {(there or lost)[0]} {what}, and {len(lost) - 1} more of {len(wanted)} "
            "tensors differ or are missing. Something changed them while they were written, or "
            "the writer drops them; a save in the background needs a copy to write from"
        )


def _key(name: str, mark: str) -> bytes:
    found = new_hash("xxh3")
    found.update(f"{len(name)}:{name}={mark}".encode())
    return bytes(found.digest())
