"""Damage to files, as a disk does it: silently."""

from pathlib import Path


def flip_a_bit(path: Path) -> None:
    """Flips one bit in the middle of a file.

    Raises:
        ValueError: If it is empty.
    """
    size = path.stat().st_size
    if not size:
        raise ValueError(f"{path} holds no byte of which a bit could flip.")
    with path.open("r+b") as file:
        file.seek(size // 2)
        (byte,) = file.read(1)
        file.seek(size // 2)
        file.write(bytes([byte ^ 1]))
