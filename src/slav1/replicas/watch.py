"""Looks at this rank's copies every few steps and says what they hold; waits for nobody.

Imports torch, so nothing that the monitor imports may import this module.
"""

import math
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from slav1.contract import Contract, Mode
from slav1.detectors import ReplicaDivergenceLiteral
from slav1.replicas._copy_set import CopySet, Kind
from slav1.replicas.beside import Beside
from slav1.replicas.find import Copy, Found
from slav1.session.messages import Copies, Digests

RULE = ReplicaDivergenceLiteral.RULE
"""Name of the rule that compares them."""

_MAX_LATE = 64


class _Look(NamedTuple):
    """Shares that are looked at after one step."""

    copies: CopySet
    """Of which set."""
    step: int
    """Step after whose update they are looked at."""
    slots: list[int]
    """Which shares."""


class _Late(NamedTuple):
    """Digests that are on their way from a device."""

    look: _Look
    """What they are of."""
    sums: Tensor
    """What digests are made of, in pinned memory."""
    arrival: Any
    """Event that is over once they are there."""


class Watched(Protocol):
    """What of a session a rank needs to have its copies compared."""

    contract: Contract
    rank: int
    peers: Any

    def tell(self, message: Any) -> None:
        """Says something to the monitor that nobody answers."""
        ...

    def note(self, message: str) -> None:
        """Writes a notice into the ledger."""
        ...


class ReplicaWatch:
    """Makes digests of this rank's copies and hands them to the monitor.

    All ranks look at the same tensors after the same steps: once at the beginning at all of
    them, then at a share at a time, so that all have come by after ``every_steps``. Digests
    are made on the device and read when they have arrived, a step later or more.
    """

    def __init__(self, session: Watched, find: Callable[[], Found]) -> None:
        """Starts before the first step.

        Args:
            session: This rank's session; the rule of its contract says how often, and
                whether at all.
            find: Finds the copies; called after an update.
        """
        rule = session.contract.rules[RULE]
        self._every_steps: int = getattr(rule.detector, "every_steps", 50)
        self._is_on = rule.mode is not Mode.OFF and session.peers.world_size > 1
        self._rank = session.rank
        self._find = find
        self._say = session.tell
        self._note = session.note
        self._found: Found | None = None
        self._sets: list[CopySet] = []
        self._declared: dict[Kind, tuple[str, bool]] = {}
        self._looked_step = 0
        self._is_certain = True
        self._has_told = False
        self._is_beginning = True
        self._late: deque[_Late] = deque()
        self._beside = Beside()
        self._waits_for_backward = True
        self.waiting: list[_Look] = []
        """Looks that are made beside the next backward."""
        self.due_step = math.inf
        """Step after which :meth:`look` has something to do."""

    def begin(self, step: int) -> None:
        """Training begins, or goes on, after ``step``."""
        self.forget()
        self._is_beginning, self._looked_step = True, step
        self.due_step = step + 1 if self._is_on else math.inf

    def forget(self) -> None:
        """Lets go of all tensors, as before others are put in their place."""
        self.end_backward()
        self._late.clear()
        self.waiting.clear()
        self._found, self._sets = None, []

    def look(self, step: int) -> None:
        """Looks at what is due after the update of ``step``, on a GPU perhaps not before
        :meth:`begin_backward`; never raises into training."""
        try:
            if self.waiting or self._beside.is_running:
                self._do_without_backward()
            self._send_arrived()
            self._look(step)
            self._looked_step = step
            self.due_step = self._next_step(step)
        except Exception as error:  # noqa: BLE001 - a look must not end a training
            self._give_up(error)

    def begin_backward(self) -> None:
        """A backward begins: until it ends nobody changes what is looked at. To be called if
        something is :attr:`waiting`; never raises into training."""
        try:
            self._beside.run(self._digest_waiting)
        except Exception as error:  # noqa: BLE001 - a look must not end a training
            self._give_up(error)

    def _digest_waiting(self) -> None:
        waiting, self.waiting = self.waiting, []
        for look in waiting:
            self._digest(look)

    def end_backward(self) -> None:
        """The backward is over: what comes next may change parameters."""
        if self._beside.is_running:
            self._beside.join()

    def _do_without_backward(self) -> None:
        """An update came before we heard of a backward that began or ended: what was looked at
        meanwhile says nothing, and the next looks do not wait for one."""
        self.end_backward()
        self._late.clear()
        self.waiting.clear()
        self._waits_for_backward = False

    def _give_up(self, error: Exception) -> None:
        self.due_step = math.inf
        self._is_on = False
        self.forget()
        self._note(
            f"Copies of rank {self._rank} are not looked at any more: "
            f"{type(error).__name__}: {error}."
        )

    def _look(self, step: int) -> None:
        is_beginning = self._is_beginning or self._found is None
        # Steps may be counted by more than one at a time, as with several optimizers.
        after = self._looked_step
        if not is_beginning and not any(each.due_slots(after, step) for each in self._sets):
            return
        found = self._found
        if found is None or not found.is_current() or not all(one.fits() for one in self._sets):
            found = self._take_in(self._find())
        if self._is_certain and (found.is_apart or found.is_joined):
            self._is_certain = False
            self._declare(found)
        if found.is_apart:
            # What ranks hold that make steps of their own says nothing.
            return
        self._is_beginning = False
        for each in self._sets:
            slots = each.all_slots if is_beginning else each.due_slots(after, step)
            if not slots:
                continue
            look = _Look(each, step, slots)
            if self._waits_for_backward and not is_beginning and found.is_still_in_backward:
                self.waiting.append(look)
            else:
                self._digest(look)

    def _take_in(self, found: Found) -> Found:
        by_kind: dict[Kind, list[Copy]] = {}
        for copy in found.copies:
            by_kind.setdefault((copy.ranks, copy.is_trained), []).append(copy)
        self._found = found
        self._sets = [CopySet(copies, self._every_steps) for copies in by_kind.values()]
        self._is_certain = self._is_certain and found.is_certain
        self._declare(found)
        return found

    def _declare(self, found: Found) -> None:
        if not self._sets and not self._has_told and self._rank == 0:
            why = f": {'; '.join(found.left_out)}" if found.left_out else ""
            self._note(
                f"No parameter is known to be held by more than one rank, so none is compared{why}."
            )
        self._has_told = True
        for each in self._sets:
            kind = ranks, is_trained = each.kind
            said = (each.identity, self._is_certain and is_trained)
            if self._declared.get(kind) == said:
                continue
            self._declared[kind] = said
            names = [(one.name, one.kind) for one in each.copies] if self._rank == ranks[0] else []
            self._say(
                Copies(
                    identity=each.identity,
                    ranks=list(ranks),
                    slots=each.slots,
                    every_steps=self._every_steps,
                    names=names,
                    is_trained=is_trained,
                    is_certain=said[1],
                    left_out=found.left_out,
                )
            )

    def _digest(self, look: _Look) -> None:
        sums = look.copies.sums(look.slots, turn=look.step // self._every_steps)
        if sums.device.type == "cuda":
            copy = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
            copy.copy_(sums, non_blocking=True)
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record()
            self._late.append(_Late(look, copy, arrival))
            if len(self._late) > _MAX_LATE:
                self._late.popleft()
            return
        self._send(look, sums)

    def _send_arrived(self) -> None:
        while self._late and self._late[0].arrival.query():
            late = self._late.popleft()
            self._send(late.look, late.sums)

    def _send(self, look: _Look, sums: Tensor) -> None:
        values = look.copies.digests(look.slots, sums.tolist())
        packed = struct.pack(f"<{len(values)}Q", *values)
        identity = look.copies.identity
        self._say(Digests(identity=identity, step=look.step, slots=look.slots, values=packed))

    def _next_step(self, step: int) -> float:
        if self._late or self.waiting:
            return step + 1
        if self._is_beginning:
            return step + self._every_steps
        return min((each.next_step(step) for each in self._sets), default=math.inf)
