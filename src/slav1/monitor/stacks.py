"""Python stacks of a process that may be unable to run Python.

The trainer has registered ``faulthandler`` for one signal. Its handler is C code and
needs no interpreter lock, so a rank stuck in a C call writes its stacks too.
"""

import os
import re
from dataclasses import dataclass
from typing import NamedTuple

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x(?P<thread>[0-9a-f]+)")


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDump:
    """What one rank wrote when it was asked for its stacks."""

    text: str
    """All threads, as ``faulthandler`` prints them."""

    frames: tuple[Frame, ...]
    """The training thread, innermost call first."""


class StackFile:
    """The end of a rank's stack file that its monitor reads."""

    def __init__(self, fd: int, thread: int) -> None:
        self.fd = fd
        self._thread = thread

    def mark(self) -> None:
        """Forgets what was written so far, so that looking for hours costs no memory."""
        os.ftruncate(self.fd, 0)
        # The trainer writes through the same open file, at this same place.
        os.lseek(self.fd, 0, os.SEEK_SET)

    def size(self) -> int:
        """Bytes written since the mark."""
        return os.fstat(self.fd).st_size

    def read(self) -> StackDump:
        """Returns what was written since the mark."""
        text = os.pread(self.fd, self.size(), 0).decode(errors="replace")
        return StackDump(text=text, frames=training_frames(text, self._thread))

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self.fd)


def training_frames(text: str, thread: int) -> tuple[Frame, ...]:
    """Returns the frames of one thread of a dump, innermost first.

    Args:
        text: Output of ``faulthandler.dump_traceback(all_threads=True)``.
        thread: Identifier of the thread, as ``threading.get_ident`` gives it.
    """
    frames: list[Frame] = []
    is_wanted = False
    for line in text.splitlines():
        if start := _THREAD.match(line):
            is_wanted = int(start["thread"], 16) == thread
        elif is_wanted and (found := _FRAME.match(line)):
            number = int(found["line"]) if found["line"].isdigit() else 0
            frames.append(Frame(found["file"], number, found["function"]))
    return tuple(frames)
