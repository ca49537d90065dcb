"""Which of several optimizers ends a step."""

PATIENCE_STEPS = 16
"""Steps of other optimizers after which one that rests no longer sets the pace."""


class Pace:
    """Picks one optimizer whose step is the end of a training step.

    A loop may step several optimizers in one iteration, or one of them more often than
    another. A training step must end once an iteration, at the same point on all ranks,
    so only the loop itself is looked at: the pace is set by whichever optimizer stepped
    last before the first one stepped again, which is the last one of an iteration. Until
    that is known no step ends, so the first two iterations count as one. An optimizer
    that rests for :data:`PATIENCE_STEPS` steps of the others has to be found anew.
    """

    def __init__(self) -> None:
        self._setter: int | None = None
        self._first: int | None = None
        self._last: int | None = None
        self._num_others = 0

    def ends_step(self, optimizer: int, *, num_optimizers: int) -> bool:
        """Takes in one real optimizer step; says whether it ends the training step.

        Args:
            optimizer: Identifies the optimizer that stepped.
            num_optimizers: How many were prepared; a single one needs no guessing.
        """
        if self._setter is None:
            self._look_for_setter(optimizer, num_optimizers)
        self._last = optimizer
        if optimizer == self._setter:
            self._num_others = 0
            return True
        self._num_others += 1
        if self._setter is not None and self._num_others >= PATIENCE_STEPS:
            self._setter, self._first, self._num_others = None, optimizer, 0
        return False

    def _look_for_setter(self, optimizer: int, num_optimizers: int) -> None:
        if num_optimizers == 1:
            self._setter = optimizer
        elif self._first is None:
            self._first = optimizer
        elif optimizer == self._first:
            self._setter = self._last
