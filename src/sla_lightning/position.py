"""Where a rank stands in its data and its random numbers: saved, and taken up exactly."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Trainer

from sla_lightning import _compat, _compat_position
from slav1.checkpoint import Peers
from slav1.seeds import digests, put_back, take

MAX_RANKS_BY_SIDE = 64
"""Most ranks whose random states travel by the side channel, which brings all of them to each;
where there are more, one collective in a save brings them to rank 0 only."""


class Position:
    """Lets a training that goes on from a checkpoint see the batches and the noise that it
    would have seen without the interruption.

    The host counts its batches by itself, but begins the epoch's data anew, in an order
    that may be another epoch's, with other random numbers.
    """

    def __init__(
        self, trainer: Trainer, peers: Peers, limit_s: float, tell: Callable[[str], None]
    ) -> None:
        """Starts to keep the state from which each epoch's data is drawn.

        Args:
            trainer: The trainer, before its fit loop runs.
            peers: The other ranks.
            limit_s: How long to wait for them, in seconds.
            tell: Takes a sentence for people about what can't be taken up.
        """
        self._trainer = trainer
        self._peers = peers
        self._limit_s = limit_s
        self._tell = tell
        self._epoch: dict[str, Any] = take()
        self._pending: dict[str, Any] | None = None
        self._rest: Callable[[], None] | None = None
        _compat.before_iterating(trainer, self._begin_epoch)
        _compat.before_epoch(trainer, self._go_on)

    @property
    def pending(self) -> dict[str, Any] | None:
        """States of a loaded checkpoint that the rank is about to go on with; None if none."""
        return self._pending

    def state(self) -> dict[str, Any]:
        """Collective. The random states of all ranks, on rank 0; its own alone on another,
        for formats in which each rank finds what it wrote itself.

        Returns:
            Plain values for each rank: ``now`` and ``epoch``, the latter from before its data
            was drawn.

        Raises:
            PeersMissingError: If a rank does not come; nothing was sent then.
        """
        mine = {"now": take(), "epoch": self._epoch}
        if self._peers.world_size == 1:
            return {"ranks": [mine]}
        # Who saves on some ranks only is told so here, and not left in a collective for ever.
        is_small = self._peers.world_size <= MAX_RANKS_BY_SIDE
        met = self._peers.gather("checkpoint", mine if is_small else None, limit_s=self._limit_s)
        if is_small:
            return {"ranks": met}
        of_all: list[Any] = [None] * self._peers.world_size
        is_first = self._peers.rank == 0
        dist.gather_object(mine, of_all if is_first else None, dst=0)
        of_all[self._peers.rank] = mine
        return {"ranks": of_all}

    def take_up(self, saved: dict[str, Any] | None) -> None:
        """Puts data and random numbers where a checkpoint that was just loaded left them.

        Args:
            saved: What :meth:`state` returned on rank 0 or on this one; None if the
                checkpoint has none.
        """
        mine = self._mine(saved)
        if mine is None:
            self._rest = _compat_position.position_data(self._trainer, lambda: None)
            return
        self._rest = _compat_position.position_data(self._trainer, lambda: put_back(mine["epoch"]))
        # Hooks at the start of training may still draw random numbers.
        self._epoch, self._pending = mine["epoch"], mine["now"]

    def _mine(self, saved: dict[str, Any] | None) -> dict[str, Any] | None:
        if saved is None:
            return None
        ranks = saved["ranks"]
        if len(ranks) != self._peers.world_size:
            self._tell(
                f"The checkpoint holds the random states of {len(ranks)} ranks and there are "
                f"{self._peers.world_size}: each rank goes on with numbers of its own, and counts "
                "batches on that hold other samples now, so some come twice in this epoch or not "
                "at all."
            )
            return None
        mine: dict[str, Any] = ranks[self._peers.rank]
        return mine

    def _check(self, wanted: dict[str, Any]) -> None:
        """Looks whether the generators go on where the checkpoint left them."""
        now, saved = digests(take()), digests(wanted)
        lost = [name for name in saved if now.get(name) != saved[name]]
        if lost:
            self._peers.record(
                "notice",
                f"Rank {self._peers.rank} could not restore its generators: {', '.join(lost)}.",
                rule="seed_contract",
                audit="resume",
                wrong=[f"The {name} generator is not what the checkpoint says." for name in lost],
                at_fault=[self._peers.rank],
            )

    def _begin_epoch(self) -> None:
        self._epoch = take()

    def _go_on(self) -> None:
        if self._pending is not None:
            put_back(self._pending)
            self._check(self._pending)
            self._pending = None
        rest, self._rest = self._rest, None
        if rest is not None:
            rest()
