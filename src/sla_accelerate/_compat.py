"""Watching the fetches of Accelerate's loaders, which leans on how those are made."""

from collections.abc import Iterator
from typing import Any, Protocol


class FetchWatch(Protocol):
    """Who is told about fetches."""

    def begin_fetch(self, loader: Any) -> bool:
        """A batch is asked for; returns whether there is one."""
        ...

    def end_fetch(self, batch: Any) -> Any:
        """It is there; returns what the loop shall get."""
        ...

    def end_epoch(self) -> None:
        """There is no further batch."""
        ...


class FindWatch(Protocol):
    """Finds who is told right now."""

    def __call__(self) -> FetchWatch | None:
        """The run that is watched; None if none is."""
        ...


def is_watched(loader: Any) -> bool:
    """Whether :func:`watch_fetches` was called with this loader."""
    return hasattr(type(loader), "sla_host_class")


def watch_fetches(loader: Any, find_watch: FindWatch) -> None:
    """Lets every pass over ``loader`` tell about its fetches.

    The loader stays the same object, which Accelerate keeps in its lists, and is still
    an instance of its class. Only its ``__iter__`` is another one, and Python looks that
    up on the class; so it gets a class of its own, as Accelerate does with its loaders.
    """
    host_class = type(loader)
    if is_watched(loader):
        return

    def batches(self: Any) -> Iterator[Any]:
        return _told(find_watch, self, host_class.__iter__(self))

    content = {"__iter__": batches, "__module__": host_class.__module__}
    watched: Any = type(host_class.__name__, (host_class,), content)
    watched.__qualname__ = host_class.__qualname__
    watched.sla_host_class = host_class
    # Its own ``__class__`` is a property that names the class of the loader underneath.
    object.__dict__["__class__"].__set__(loader, watched)


def _told(find_watch: FindWatch, loader: Any, batches: Iterator[Any]) -> Iterator[Any]:
    while True:
        # Looked up each time: the run may begin or end inside the loop.
        watch = find_watch()
        if watch is not None and not watch.begin_fetch(loader):
            break
        try:
            batch = next(batches)
        except StopIteration:
            break
        yield batch if watch is None else watch.end_fetch(batch)
        # While the next one is fetched only the loop may keep this one alive.
        del batch
    if watch is not None:
        watch.end_epoch()
