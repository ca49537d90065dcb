"""Following a running job of the demo until its last process has ended."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from slav1.cli._demo_interrupts import Interrupts
from slav1.cli._demo_job import Job
from slav1.cli._demo_ledger import LedgerTail
from slav1.cli._demo_picture import Picture
from slav1.cli._demo_plan import RunPlan
from slav1.cli._demo_rings import Rings
from slav1.cli._demo_story import Ending
from slav1.cli._demo_view import View

LOOK_EVERY_S = 0.1
"""Pause between two looks at the job, in seconds."""

STILL_LIMIT_S = 240.0
"""Time in which nothing moves after which the demo gives up, in seconds; longer than a slow
disk needs to import PyTorch."""

LEAVE_LIMIT_S = 20.0
"""Time that the other processes get to end after rank 0 has, in seconds."""


@dataclass(kw_only=True, slots=True)
class Watch:
    """One job, what can be seen of it, and where it is shown."""

    job: Job
    ledger: LedgerTail
    view: View
    plan: RunPlan
    started_ns: int
    """When the demo began, on the wall clock, in nanoseconds."""

    rings: Rings = field(default_factory=Rings)

    def until_gone(self, interrupts: Interrupts) -> Ending | None:
        """Shows the job until no process of it is left.

        Args:
            interrupts: Looked at often.

        Returns:
            How it ended; None if an interrupt came first, and the job may still run.
        """
        given_up = self._until_rank_0_ends(interrupts)
        if interrupts.number is not None:
            return None
        if given_up is None:
            given_up = self._until_others_end(interrupts)
        num_left = len(self.job.processes())
        status = self.job.exit_status()
        if num_left:
            self.job.end()
        self._look(is_ending=True)
        began_ns = self._fault_began_ns()
        self.rings.close()
        return Ending(
            exit_status=status, num_left=num_left, fault_began_ns=began_ns, given_up=given_up
        )

    def _fault_began_ns(self) -> int | None:
        """When the step that was hit began: the end of the one before, on the wall clock."""
        fault = self.plan.scenario
        if fault.rank is None or fault.step is None:
            return None
        end_s = self.rings.end_of_step_s(rank=fault.rank, step=fault.step - 1)
        if end_s is None:
            return None
        return time.time_ns() - time.monotonic_ns() + int(end_s * 1e9)

    def _until_rank_0_ends(self, interrupts: Interrupts) -> str | None:
        moved_s, seen = time.monotonic(), self._progress()
        while interrupts.number is None and self.job.exit_status() is None:
            self._look()
            now_s = time.monotonic()
            if self._progress() != seen:
                moved_s, seen = now_s, self._progress()
            if now_s - moved_s > STILL_LIMIT_S:
                return f"Nothing moved for {STILL_LIMIT_S:g} s, so the demo ended the job."
            time.sleep(LOOK_EVERY_S)
        return None

    def _until_others_end(self, interrupts: Interrupts) -> str | None:
        end_s = time.monotonic() + LEAVE_LIMIT_S
        while interrupts.number is None and self.job.processes():
            self._look(is_ending=True)
            if time.monotonic() > end_s:
                return f"Processes were left {LEAVE_LIMIT_S:g} s after rank 0 had ended."
            time.sleep(LOOK_EVERY_S)
        return None

    def _progress(self) -> Sequence[object]:
        return [len(self.ledger.entries), *((now.rank, now.step) for now in self.rings.now())]

    def _look(self, *, is_ending: bool = False) -> None:
        if len(self.rings) < self.plan.num_ranks:
            self.rings.find(self.job.ranks())
        self.rings.read()
        for entry in self.ledger.new_entries():
            if entry.kind == "start" and entry.attempt:
                self.rings.close()
            self.view.show_event(entry, (entry.time_ns - self.started_ns) * 1e-9)
        picture = Picture(
            elapsed_s=(time.time_ns() - self.started_ns) * 1e-9,
            num_steps=self.plan.num_steps,
            num_ranks=self.plan.num_ranks,
            ranks=self.rings.now(),
            losses=self.rings.mean_losses(),
            is_ending=is_ending,
        )
        self.view.show_progress(picture)
