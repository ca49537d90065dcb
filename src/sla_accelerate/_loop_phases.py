"""Where in its steps a hand-written loop is, told from what it calls."""

import contextlib
from collections.abc import Callable, Iterator
from time import monotonic_ns

from torch import is_grad_enabled

from slav1.phase import Phase
from slav1.recorder import Recorder

_FORWARD, _EVALUATION = int(Phase.FORWARD), int(Phase.EVALUATION)


class LoopPhases:
    """Tells the recorder which phase a loop is in.

    A fetch from a prepared loader is DATA, and what follows it FORWARD, until ``backward``.
    Without a prepared loader all from one step to the next ``backward`` is FORWARD. A fetch
    while gradients are off or no model is in training mode is EVALUATION, and so is all that
    comes after the last batch of an epoch: what a loop does there, nobody knows, so it gets
    the limits of an evaluation.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        is_model_training: Callable[[], bool],
        leaves_steps: Callable[[], None],
    ) -> None:
        """Starts before the first step, in the phase of the set-up.

        Args:
            recorder: Is told.
            is_model_training: Whether a model is in training mode.
            leaves_steps: Called when what comes next is no part of a step.
        """
        self.pinned: int | None = None
        """Phase of all that happens now, whatever it looks like; None if there is none."""
        self.is_aside = True
        """Whether the loop is outside of its steps."""
        self.is_mode_telling = True
        """Whether a model's mode says if a loop trains."""
        self.rest = _FORWARD
        """Phase from the end of a step, or of a backward without one, to the next fetch."""
        self._recorder = recorder
        self._is_model_training = is_model_training
        self._leaves_steps = leaves_steps
        self._is_closed = False

    def is_training(self) -> bool:
        """Whether a batch that is asked for now is one to train with."""
        return is_grad_enabled() and (not self.is_mode_telling or self._is_model_training())

    def go_on(self, phase: int) -> None:
        """A part of a step begins."""
        self._recorder.enter(phase)
        if self.is_aside:
            self.is_aside = False
            self._recorder.forget_times()

    def step_aside(self, phase: int) -> None:
        """Something begins that is no part of a step; lasts until :meth:`go_on`."""
        if self.pinned is not None:
            self._recorder.enter(self.pinned)
            return
        self.is_aside = True
        self._leaves_steps()
        self._recorder.enter(phase)

    @contextlib.contextmanager
    def aside(self, phase: Phase) -> Iterator[None]:
        """Something that is no part of a step; may be nested."""
        pinned, was_aside, before = self.pinned, self.is_aside, int(self._recorder.phase)
        self.pinned = int(phase)
        self._recorder.enter(self.pinned)
        try:
            yield
        finally:
            if not self._is_closed:
                self.pinned, self.is_aside = pinned, was_aside
                self._recorder.enter(before)
                self._recorder.forget_times()

    @contextlib.contextmanager
    def with_peers(self) -> Iterator[None]:
        """A collective that the loop called itself: waiting in it is no work."""
        self.note_progress()
        start_ns = monotonic_ns()
        yield
        self.note_progress()
        self._recorder.leave_out(monotonic_ns() - start_ns)

    def note_progress(self) -> None:
        """The loop called the accelerator, so it is not stuck."""
        is_between = self.pinned is None and not self.is_aside
        if is_between and self._recorder.phase is Phase.BETWEEN and not self.is_training():
            self.step_aside(_EVALUATION)
        else:
            self._recorder.enter(int(self._recorder.phase))

    def close(self) -> None:
        """Nothing is told any more."""
        self._is_closed = True
