"""Messages that are longer than a socket takes at once: cut here, joined there."""

from collections.abc import Iterator

import msgspec

PART_BYTES = 1 << 15
"""Longest piece, in bytes: a fraction of what the smallest send buffer holds."""

MAX_WHOLE_BYTES = 1 << 26
"""Longest message that is joined again, in bytes; a longer one is dropped."""


class Part(msgspec.Struct, tag=True, kw_only=True):
    """A piece of a message that is too long to be sent at once."""

    number: int
    """Counts the cut messages of one sender."""

    index: int
    """Counts the pieces of one message, from 0."""

    is_last: bool
    """Whether the message ends with this piece."""

    data: bytes
    """The piece."""


def cut(raw: bytes, number: int) -> Iterator[bytes]:
    """Yields what to send for one encoded message: itself if it is short, its parts if not."""
    if len(raw) <= PART_BYTES:
        yield raw
        return
    starts = range(0, len(raw), PART_BYTES)
    for index, start in enumerate(starts):
        data = raw[start : start + PART_BYTES]
        is_last = start == starts[-1]
        yield msgspec.msgpack.encode(Part(number=number, index=index, is_last=is_last, data=data))


class Joiner:
    """Puts the parts of one sender together again.

    Parts come in order. A message that its sender gave up in the middle is dropped, and
    so is what is left of one whose beginning is missing.
    """

    def __init__(self) -> None:
        """Starts with no message begun."""
        self._number = -1
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    def add(self, part: Part) -> bytes | None:
        """Takes in one part; returns the whole message with its last one."""
        if part.index == 0:
            self._number, self._pieces, self._num_bytes = part.number, [], 0
        if part.number != self._number or part.index != len(self._pieces):
            return None
        self._num_bytes += len(part.data)
        if self._num_bytes > MAX_WHOLE_BYTES:
            self._number, self._pieces = -1, []
            return None
        self._pieces.append(part.data)
        if not part.is_last:
            return None
        whole = b"".join(self._pieces)
        self._number, self._pieces = -1, []
        return whole
