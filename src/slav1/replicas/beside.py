"""Work on a GPU that runs beside a backward, in the gaps that it leaves.

Imports torch, so nothing that the monitor imports may import this module.
"""

from collections.abc import Callable
from typing import Any

import torch


class Beside:
    """A stream of its own that begins where the training is and ends before it goes on."""

    def __init__(self) -> None:
        """Takes no stream before there is something to do."""
        self._stream: Any = None
        self.is_running = False
        """Whether the training has not waited yet for what runs here."""

    def run(self, work: Callable[[], None]) -> None:
        """Launches work that reads what the training has written so far."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        self.is_running = True
        with torch.cuda.stream(self._stream):
            work()

    def join(self) -> None:
        """What the training launches from now on comes after it; the host does not wait."""
        self.is_running = False
        torch.cuda.current_stream().wait_stream(self._stream)
