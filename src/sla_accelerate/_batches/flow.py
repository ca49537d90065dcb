"""What one ``for`` over a prepared loader gets, which may be taken back while it runs."""

import logging
from collections.abc import Generator, Iterator
from typing import Any

from sla_accelerate._batches import noise
from sla_accelerate._batches.passes import Fetches, LoaderTrack
from sla_accelerate._batches.plan import Plan

_log = logging.getLogger("sla_accelerate")


class Flow:
    """The batches of one loop over a loader.

    When the loader's place is set while the loop runs, the loop goes on from there. It ends
    where it would have ended: taken back over the end of an epoch, it goes through the rest
    of the earlier one and then through its own.
    """

    def __init__(
        self, loader: Any, track: LoaderTrack, host_class: type, *, offset: int, origin: Any
    ) -> None:
        """Begins nothing before the first batch is asked for.

        Args:
            loader: The prepared loader, or what the host made of it to skip batches.
            track: What is known of the prepared one.
            host_class: The class whose ``__iter__`` gives the batches.
            offset: Batches that ``loader`` leaves out at its start.
            origin: The prepared one; the same as ``loader`` unless that skips.
        """
        self._origin = origin
        self._loader = loader
        self._track = track
        self._host_class: Any = host_class
        self._offset = offset
        self._factor = _batches_of_sampler(loader)
        self._host: Any = None
        self._fetches: Fetches | None = None
        self._epoch: int | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        track = self._track
        if self._host is None or track.plan is not None:
            self._begin()
        while True:
            assert self._host is not None
            try:
                batch = next(self._host)
            except StopIteration:
                self._settle()
                if not self._goes_on():
                    raise
                self._begin()
                continue
            self._settle()
            track.hand_out()
            return batch

    def _begin(self) -> None:
        loader, track = self._loader, self._track
        if isinstance(self._host, Generator) and track.is_open:
            # The host takes a loader off its list only when a pass comes to its end.
            self._host.close()
            loader.end()
        plan = self._take_plan()
        epoch = getattr(loader, "iteration", 0)
        self._epoch = epoch if self._epoch is None else self._epoch
        track.begin(epoch, plan, factor=self._factor, offset=self._offset)
        if plan is not None and self._is_empty(plan):
            self._host = iter(())
            if plan.now is not None:
                noise.restore(plan.now)
            return
        base = loader.base_dataloader
        track.before_pass(base, epoch)

        def fetches() -> Fetches:
            del base.__dict__["__iter__"]
            self._fetches = Fetches(loader, track, plan)
            return self._fetches

        # The host asks the loader underneath by name, so its own word comes first.
        base.__dict__["__iter__"] = fetches
        self._host = self._host_class.__iter__(loader)

    def _take_plan(self) -> Plan | None:
        """The way this pass begins, unless the loop has said something else since."""
        plan, self._track.plan = self._track.plan, None
        if plan is None:
            return None
        epoch = getattr(self._loader, "iteration", plan.epoch)
        if epoch == plan.epoch and self._offset in (0, plan.num_handed):
            return plan
        _log.warning(
            "The checkpoint's data position (epoch %d, batch %d) is not used: the loop asked for "
            "epoch %d from batch %d on.",
            *(plan.epoch, plan.num_handed, epoch, self._offset),
        )
        return None

    def _is_empty(self, plan: Plan) -> bool:
        """Whether nothing is left of the pass; a loader that dispatches can't be asked."""
        if plan.is_at_end:
            return True
        try:
            length = self._offset + len(self._loader)
        except TypeError:
            return False
        return self._track.course().follows(0) >= length

    def _settle(self) -> None:
        if self._fetches is not None:
            self._fetches.settle()
            self._fetches = None

    def _goes_on(self) -> bool:
        """The host's pass is over; returns whether the loop has to go through another."""
        loader, track = self._loader, self._track
        track.is_open = False
        for one in (loader, self._origin):
            # The host counts no pass that had nothing left, and one that skips for itself.
            if getattr(one, "iteration", None) == track.epoch:
                one.iteration = track.epoch + 1
        assert self._epoch is not None
        return track.chains_epochs and track.epoch < self._epoch


def _batches_of_sampler(loader: Any) -> int:
    """How many batches of the loader underneath make one that the loop gets."""
    is_dispatcher = hasattr(loader, "slice_fn")
    return 1 if not is_dispatcher or loader.split_batches else int(loader.state.num_processes)
