"""Digests of files: what is read, and what happens if it can't be."""

import os
from pathlib import Path

import pytest

from slav1.checkpoint.digests import CHUNK_BYTES, _Reader


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_file_that_shrinks_while_it_is_read_is_an_error(is_direct: bool, tmp_path: Path) -> None:
    """
    A file that ends before the length it had when it was opened, in the middle of a block or
    of a chunk, is an error, and is not read for ever.
    """
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    file = os.open(path, os.O_RDONLY)
    try:
        for size in (9000, CHUNK_BYTES + 9000):
            reader = _Reader(path, file, size, "xxh3", is_direct=is_direct)
            with pytest.raises(OSError, match="shorter"):
                reader.digest_chunks(1)
    finally:
        os.close(file)
