"""Damage to files, as a disk does it: silently."""

from pathlib import Path


def flip_a_bit(path: Path) -> None:
    """Flips one bit in the middle of a file, or of the largest file of a folder.

    Raises:
        ValueError: If there is no file with any content.
    """
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    largest = max(files, key=lambda each: each.stat().st_size, default=None)
    size = 0 if largest is None else largest.stat().st_size
    if largest is None or not size:
        raise ValueError(f"{path} holds no byte of which a bit could flip.")
    with largest.open("r+b") as file:
        file.seek(size // 2)
        (byte,) = file.read(1)
        file.seek(size // 2)
        file.write(bytes([byte ^ 1]))
