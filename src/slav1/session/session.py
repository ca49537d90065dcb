"""One rank's side of a watched run: the recorder, the command word, the monitor's ear."""

import atexit
import contextlib
import faulthandler
import multiprocessing
import os
import signal
import threading
from functools import partial
from multiprocessing import util
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, cast

from slav1.contract import Contract
from slav1.coordinator.messages import IN_ORDER
from slav1.coordinator.say import say
from slav1.decision import Action, Decision
from slav1.ledger import Kind
from slav1.recorder import Block, Recorder
from slav1.recorder.block import anonymous_file
from slav1.recorder.command import CommandReader
from slav1.recorder.layout import Word
from slav1.session import messages
from slav1.session.allocations import Allocations
from slav1.session.dying import dying_of
from slav1.session.link import MonitorLink, SessionError, join_monitor
from slav1.session.orders import Orders
from slav1.session.peers import RunPeers, Spare
from slav1.session.start_monitor import END_LIMIT_S, RunningMonitor
from slav1.session.unwatched import write_alone
from slav1.session.vital_signs import VitalSigns

if TYPE_CHECKING:
    from slav1.checkpoint.peers import Peers

__all__ = ["Session", "SessionError"]

STACK_SIGNAL = int(signal.SIGURG)
"""Asks for stacks. Ignored by default, so a process that is not ready for it lives on."""

CHECK_EVERY_S = 2.0
"""Pause between two looks, at step boundaries, whether the monitor lives, in seconds."""

FAILED_END_LIMIT_S = 1.0
"""How long a rank that failed waits for its monitor's last lines, in seconds: the other
ranks may be waiting for just this process to end."""

_CHECK_EVERY_NS = int(CHECK_EVERY_S * 1e9)


class Session:
    """What a host adapter holds while a run is watched. Used by one thread, but for
    :attr:`peers`, :meth:`note` and :meth:`ask_state`, which any thread may use."""

    def __init__(
        self,
        *,
        rank: int,
        run_folder: Path,
        num_slots: int,
        attempt: int = 0,
        world_size: int = 1,
        spare: Spare | None = None,
        contract: Contract | None = None,
    ) -> None:
        """Starts to record; nobody watches yet.

        Args:
            rank: Global rank.
            run_folder: Folder of the run.
            num_slots: Steps the flight ring holds.
            attempt: Counts the starts of this run, from 0.
            world_size: Ranks of the run.
            spare: How the ranks meet where no monitor is; None if they can't.
            contract: The contract, rank 0's on all ranks; None takes L1.
        """
        self.contract = contract or Contract.level("L1")
        """The contract of the run, the same on all ranks."""
        self.rank = rank
        self.run_folder = run_folder
        self.attempt = attempt
        """Start of this run, from 0."""
        self.peers: Peers = self._peers_of(world_size, spare)
        """The ranks of this run, for what they do together off the hot path."""
        self._block = Block.create(rank=rank, num_slots=num_slots)
        self.recorder = Recorder(self._block)
        self._pid = os.getpid()
        self._link: MonitorLink | None = None
        self._vital_signs: VitalSigns | None = None
        self._is_messenger = False
        self._is_beside_coordinator = False
        self._check_at_ns = 0
        self._allocations = Allocations(partial(self._record, "notice"), self.contract)
        self._stack_fd: int | None = None
        self._monitor: RunningMonitor | None = None
        self._is_open = True
        words = self._block.words
        self.command = CommandReader(words, self._does_monitor_beat)
        self._orders = Orders(words, self.command, self.recorder, lambda: self._link)
        atexit.register(self._leave_at_exit)
        if multiprocessing.parent_process() is not None:
            # A forked child of multiprocessing ends without the interpreter's exit hooks.
            util.Finalize(None, self._leave_at_exit, exitpriority=100)

    def _peers_of(self, world_size: int, spare: Spare | None) -> "Peers":
        if world_size > 1:
            return RunPeers(
                rank=self.rank,
                world_size=world_size,
                link=lambda: self._link,
                write=self._write,
                spare=spare,
                io_percent=self._io_percent,
            )
        # Late: the monitor's process loads this module, and must not load the checkpoints' line.
        from slav1.checkpoint.peers import Alone

        return Alone(self._record, self._io_percent)

    def connect(
        self,
        *,
        token: str,
        node: int,
        local_rank: int,
        limit_s: float,
        can_roll_back: bool = False,
    ) -> None:
        """Puts this rank under watch of its node's monitor.

        Args:
            token: Secret of the run.
            node: Number of this node.
            local_rank: Rank within the node.
            limit_s: How long to try, in seconds.
            can_roll_back: Whether the host carries out ``Action.ROLLBACK``.

        Raises:
            SessionError: If the monitor is not there or does not take this rank.
        """
        hello = messages.Hello(
            token=token,
            rank=self.rank,
            local_rank=local_rank,
            pid=self._pid,
            thread=threading.get_ident(),
            stack_signal=STACK_SIGNAL,
            can_roll_back=can_roll_back,
        )
        fds = [self._block.fd, self._open_stack_file()]
        link = join_monitor(messages.gate_address(token, node), hello, fds, limit_s)
        self._link = link
        self._vital_signs = VitalSigns(link, self._block.words)
        self._is_messenger = local_rank == 0
        self._is_beside_coordinator = node == 0

    def own(self, monitor: RunningMonitor) -> None:
        """Takes over the monitor this process started; it is waited for at the end."""
        self._monitor = monitor

    def is_monitor_alive(self) -> bool:
        """Whether the monitor that watches this rank still runs; False for good once it
        does not."""
        if self._link is None or self._vital_signs is None:
            return False
        return self._vital_signs.is_alive()

    @property
    def is_ended_by_contract(self) -> bool:
        """Whether the contract is ending this process."""
        return self._is_open and self._block.words[Word.ENDED] != 0

    def at_boundary(self, step: int) -> Action | None:
        """Says what to do after ``step``; see :meth:`CommandReader.at_boundary`."""
        now_ns = monotonic_ns()
        if now_ns >= self._check_at_ns:
            self._check_at_ns = now_ns + _CHECK_EVERY_NS
            self._look_after_monitor(step)
            self._allocations.look(self._block.words[Word.ALLOCATIONS_WANTED], step)
        return self.command.at_boundary(step)

    def decision(self) -> Decision | None:
        """What the action that :meth:`at_boundary` handed out last is for.

        Returns:
            The decision, with the same steps on all ranks; None before the first. Why it
            was made is only known while the monitor lives.
        """
        return self._orders.decision()

    def confirm(self, step: int) -> None:
        """Says that the action handed out at the end of ``step`` is being carried out.

        After a rollback :meth:`rolled_back` or :meth:`stop_instead` has to follow: no other
        decision is made before.
        """
        self._orders.confirm(step)

    def rolled_back(self, to_step: int, state: Any = None) -> None:
        """Says that training is back at a checkpoint, on this rank, and about to go on.

        What was recorded up to now must have been published. The next step to end is
        ``to_step + 1``.

        Args:
            to_step: Last optimizer step that the checkpoint contains; -1 if none.
            state: What :meth:`ask_state` gave for the checkpoint, on one rank; None on the
                others, or to let all rules of steps start afresh.
        """
        self._orders.rolled_back(to_step, state)

    def stop_instead(self, reason: str) -> None:
        """Says that this rank can't go back and stops, as all others do.

        Args:
            reason: One sentence for people, as that there is no good checkpoint.
        """
        self.note(reason, step=self._block.words[Word.CARRIED_OUT_STEP])
        self._orders.stopped_instead()

    def ask_to_roll_back(
        self, reason: str, *, step: int | None, onset_step: int | None = None
    ) -> None:
        """Asks for a rollback of all ranks, as when copies of a checkpoint differ.

        It is decided as for a breach: at the end of one step, or not at all. Several ranks
        may ask for the same.

        Args:
            reason: One sentence for people.
            step: Step at which the reason was found.
            onset_step: First step that is bad; None if it is ``step``.
        """
        self._say(messages.Want(reason=reason, step=step, onset_step=onset_step))

    def note(self, message: str, *, step: int | None = None, **evidence: Any) -> None:
        """Writes a notice into the ledger."""
        self._say(messages.Note(message=message, step=step, evidence=evidence))

    def fail(self, error: BaseException, step: int | None) -> None:
        """Publishes an exception before anything is torn down."""
        self._say(messages.Failure(error=_first_line(error), step=step))

    def compare(self, *, num_batches: int | None) -> None:
        """Lets the coordinator compare what all ranks should have in common."""
        self._say(messages.Facts(num_batches=num_batches))

    def tell(self, message: messages.FromRank) -> None:
        """Says something to the monitor that nobody answers; waits for nothing."""
        self._say(message)

    def restore(self, state: Any) -> None:
        """Lets the detectors go on from the memories of :meth:`ask_state`."""
        self._say(messages.Restore(state=state))

    def ask_state(self, step: int | None = None) -> Any:
        """Returns the detector memories for a checkpoint.

        Args:
            step: Last step that they must include, with the samples of all ranks; None
                takes them as they are.

        Returns:
            Plain values for :meth:`restore`; None if they can't be had.
        """
        if self._link is None or not self.is_monitor_alive():
            return None
        answer = self._link.answer_to(lambda number: messages.AskState(step=step, number=number))
        return answer.state if isinstance(answer, messages.State) else None

    def leave(self, reason: str) -> None:
        """Says goodbye and lets go of everything; a second call does nothing.

        Args:
            reason: ``finished`` if training ended in good order.
        """
        if not self._is_open or os.getpid() != self._pid:
            return
        self._is_open = False
        self._allocations.close()
        atexit.unregister(self._leave_at_exit)
        if isinstance(self.peers, RunPeers):
            self.peers.leave()
        was_watched = self.is_monitor_alive()
        if self._link is not None:
            if was_watched:
                self._link.take_leave(messages.Goodbye(reason=reason))
            self._link.close()
            self._link = None
        if not was_watched:
            with contextlib.suppress(OSError):
                self._block.save(self.run_folder / f"ring-{self.rank}.bin")
        if self._stack_fd is not None:
            faulthandler.unregister(STACK_SIGNAL)
            os.close(self._stack_fd)
        self._block.close()
        if self._monitor is not None:
            limit_s = END_LIMIT_S if reason in IN_ORDER else FAILED_END_LIMIT_S
            # One that stands still, or that did not let us in, will write nothing for us.
            self._monitor.wait(limit_s if was_watched else 0.0)

    def _leave_at_exit(self) -> None:
        """The process ends and the host has not said why."""
        if not self._is_open or os.getpid() != self._pid:
            return
        error = dying_of()
        if error is None:
            self.leave("exit")
            return
        self.fail(error, self._block.words[Word.STEP])
        self.leave(type(error).__name__)

    def _look_after_monitor(self, step: int) -> None:
        """Tells, once a node, that nobody watches any more. Training goes on."""
        if self._link is None or self.is_monitor_alive():
            return
        # A monitor that was only stopped reads it when it goes on, and blames nobody.
        self._link.say(messages.Goodbye(reason="exit"))
        self._link.close()
        self._link = None
        if isinstance(self.peers, RunPeers):
            self.peers.change_over()
        if not self._is_messenger:
            return
        if self._monitor is not None:
            self._monitor.wait(0.0)
        message = (
            f"The monitor of this node has ended before its ranks (noticed by rank {self.rank} "
            f"after step {step}): killed, or out of memory. Training goes on; from here on nobody "
            "finds hangs, lost ranks or bad losses of this node, and nothing stops the run."
        )
        say(message)
        if self._is_beside_coordinator:
            write_alone(self.run_folder, self.attempt, self.rank, step, message)

    def _does_monitor_beat(self) -> bool:
        """Whether a rank that is held should go on waiting for its monitor's word."""
        return self._vital_signs is not None and self._vital_signs.does_beat()

    def _open_stack_file(self) -> int:
        self._stack_fd = anonymous_file("slav1-stacks")
        faulthandler.register(STACK_SIGNAL, file=self._stack_fd, all_threads=True, chain=True)
        return self._stack_fd

    def _io_percent(self) -> int:
        return self._block.words[Word.IO_PERCENT] or 100 if self._is_open else 100

    def _record(
        self,
        kind: str,
        message: str,
        *,
        step: int | None = None,
        rule: str | None = None,
        **evidence: Any,
    ) -> None:
        self._write(
            messages.Note(message=message, step=step, evidence=evidence, kind=kind, rule=rule)
        )

    def _write(self, note: messages.Note) -> None:
        """Brings a line into the ledger, whether or not somebody keeps it."""
        link = self._link
        if link is not None and link.is_open():
            link.say(note)
            return
        kind = cast("Kind", note.kind)
        write_alone(
            self.run_folder,
            self.attempt,
            self.rank,
            note.step,
            note.message,
            kind=kind,
            rule=note.rule,
            evidence=note.evidence,
        )

    def _say(self, message: messages.FromRank) -> None:
        if self._link is not None:
            # A monitor that is gone is told of at the next boundary.
            self._link.say(message)


def _first_line(error: BaseException) -> str:
    """Says what an exception is; that must not raise another one in its place."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except Exception:  # noqa: BLE001 - an exception whose own text fails
        text = name
    line = (text.splitlines() or [name])[0][:2000]
    # A path that is no UTF-8 stands in it as characters that can't be sent.
    return line.encode(errors="replace").decode()
