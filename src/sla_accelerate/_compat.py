"""Watching the fetches of Accelerate's loaders, which leans on how those are made."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

from sla_accelerate._batches.flow import Flow
from sla_accelerate._batches.passes import LoaderTrack


class FetchWatch(Protocol):
    """Who is told about fetches."""

    is_training_fetch: bool
    """Whether the batch that was asked for last is one to train with."""

    def begin_pass(self, loader: Any, epoch: int) -> None:
        """A pass begins; nothing is drawn yet. Takes the loader underneath."""
        ...

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


def track_of(loader: Any) -> LoaderTrack | None:
    """What is known of where a prepared loader is; None if it can't be known."""
    track: LoaderTrack | None = getattr(type(loader), "sla_track", None)
    return track


def length_of(loader: Any) -> int | None:
    """How many batches a loader brings; None if it does not know."""
    try:
        return len(loader)
    except (TypeError, AttributeError):
        return None


def watch_fetches(
    loader: Any, find_watch: FindWatch, *, origin: Any = None, offset: int = 0
) -> None:
    """Lets every pass over ``loader`` tell about its fetches.

    The loader stays the same object, which Accelerate keeps in its lists, and is still
    an instance of its class. Only its ``__iter__`` is another one, and Python looks that
    up on the class; so it gets a class of its own, as Accelerate does with its loaders.

    Args:
        loader: What the host made.
        find_watch: Finds who is told.
        origin: The prepared loader of which ``loader`` is a part; None if it is one itself.
        offset: Batches at the start of ``origin`` that ``loader`` leaves out.
    """
    host_class = type(loader)
    if is_watched(loader):
        return
    # A loader for a TPU hides the one underneath.
    is_known = hasattr(host_class, "begin") and hasattr(loader, "base_dataloader")
    is_whole = origin is None and is_known
    track = LoaderTrack(partial(_tell_pass, find_watch)) if is_whole else track_of(origin)

    def batches(self: Any) -> Iterator[Any]:
        if track is None:
            return _told(find_watch, self, host_class.__iter__(self))
        flow = Flow(
            self, track, host_class, offset=offset, origin=self if origin is None else origin
        )
        return _told(find_watch, self, flow)

    content = {"__iter__": batches, "__module__": host_class.__module__}
    watched: Any = type(host_class.__name__, (host_class,), content)
    watched.__qualname__ = host_class.__qualname__
    watched.sla_host_class = host_class
    watched.sla_track = track
    # Its own ``__class__`` is a property that names the class of the loader underneath.
    object.__dict__["__class__"].__set__(loader, watched)


def _tell_pass(find_watch: FindWatch, loader: Any, epoch: int) -> None:
    watch = find_watch()
    if watch is not None:
        watch.begin_pass(loader, epoch)


def _told(find_watch: FindWatch, loader: Any, batches: Iterator[Any]) -> Iterator[Any]:
    track = track_of(loader)
    while True:
        # Looked up each time: the run may begin or end inside the loop.
        watch = find_watch()
        if watch is not None and not watch.begin_fetch(loader):
            break
        if watch is not None and watch.is_training_fetch and track is not None:
            track.is_training = True
        try:
            batch = next(batches)
        except StopIteration:
            break
        yield batch if watch is None else watch.end_fetch(batch)
        # While the next one is fetched only the loop may keep this one alive.
        del batch
    if watch is not None:
        watch.end_epoch()
