"""Which of several optimizers ends a step."""


class Pace:
    """Picks one optimizer whose step is the end of a training step.

    A loop may step several optimizers in one iteration, or one of them more often than
    another. A training step must end at the same point of the loop on all ranks, so only
    the order of steps is looked at: when an optimizer steps for the second time, the loop
    has gone round, and the one that stepped last before that sets the pace. Until then no
    step ends, so the first two iterations count as one. One that rests for a whole round
    loses its place to the one that has gone round without it.
    """

    def __init__(self) -> None:
        self._setter: int | None = None
        self._last: int | None = None
        self._seen: set[int] = set()

    def ends_step(self, optimizer: int, *, num_optimizers: int) -> bool:
        """Takes in one real optimizer step; says whether it ends the training step.

        Args:
            optimizer: Identifies the optimizer that stepped.
            num_optimizers: How many were prepared; a single one needs no round.
        """
        if num_optimizers == 1:
            self._setter = optimizer
        elif optimizer != self._setter and optimizer in self._seen:
            self._setter = self._last if self._setter is None else optimizer
            self._seen.clear()
        self._last = optimizer
        if optimizer == self._setter:
            self._seen.clear()
            return True
        self._seen.add(optimizer)
        return False
