"""What is written down about micro-batches that are run twice.

Imports nothing of torch, but belongs to a package that does.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from slav1.contract import Contract
from slav1.detectors import ReplicaDivergenceLiteral

RULE = ReplicaDivergenceLiteral.RULE
"""Name of the rule that judges them."""

MOST_NAMES = 16
"""Differing tensors that are named."""


class Watched(Protocol):
    """What of a session a rank needs to have its micro-batches replayed."""

    contract: Contract
    rank: int
    peers: Any
    recorder: Any


def about_tolerance(tolerance_ratio: float) -> str:
    """Says that bits can't be compared here, and what is compared instead.

    Args:
        tolerance_ratio: Largest difference of norms that is honest, as a share.
    """
    return (
        "Gradients do not repeat bit for bit here, so replayed micro-batches are compared by "
        f"the norms of their gradients, to {tolerance_ratio:.1e}: only gross errors are found. "
        "torch.use_deterministic_algorithms(True) makes them repeat."
    )


class ReplayWords:
    """Tells of a rank's second runs; where all ranks find the same, the first one tells."""

    def __init__(self, session: Watched) -> None:
        """Has told nothing yet.

        Args:
            session: This rank's session.
        """
        self._session = session
        self._num_equal = 0

    def tell_tolerance(self, step: int, tolerance_ratio: float) -> None:
        """Bits do not repeat here; arguments as for :func:`about_tolerance`."""
        self._note(about_tolerance(tolerance_ratio), step)

    def tell_begin(
        self,
        step: int,
        *,
        replay_ratio: float,
        modules: Sequence[str],
        num_compared: int,
        left_out: Sequence[str],
    ) -> None:
        """From now on a share of the micro-batches is run twice, and bits are compared.

        Args:
            step: Optimizer step.
            replay_ratio: The share.
            modules: Names of those that are called.
            num_compared: Outputs and gradients that are compared.
            left_out: Names of those that are not.
        """
        without = f" Not compared, as code outside of modules adds to it: {_listed(left_out)}."
        self._note(
            f"{replay_ratio:.2%} of the micro-batches are run twice, by calls of "
            f"{', '.join(modules)}: {num_compared} outputs and gradients are compared bit for bit."
            f"{without if left_out else ''}",
            step,
        )

    def tell_outcome(
        self,
        place: tuple[int, int],
        differing: Sequence[str],
        *,
        num_compared: int,
        wrong: str,
        is_exact: bool,
    ) -> None:
        """Tells of the first that is equal, of all that are not, and of the next equal one.

        Args:
            place: Step and number of the micro-batch.
            differing: Names of the tensors that differed.
            num_compared: Tensors that were compared.
            wrong: Which run was wrong: ``first``, ``second`` or ``unclear``; empty if none.
            is_exact: Whether bits were compared.
        """
        num_equal = self._num_equal
        self._num_equal = 0 if differing else num_equal + 1
        if not differing and num_equal:
            return
        step, micro_batch = place
        what = (
            f"gave other bits in {len(differing)} of {num_compared} tensors"
            if differing
            else f"gave the same bits in {num_compared} tensors"
        )
        self._session.peers.record(
            "notice",
            f"A second run of micro-batch {micro_batch} of step {step} on rank "
            f"{self._session.rank} {what}.",
            step=step,
            rule=RULE,
            is_quiet=True,
            replay={
                "micro_batch": micro_batch,
                "num_compared": num_compared,
                "num_differing": len(differing),
                "differing": list(differing[:MOST_NAMES]),
                "wrong": wrong,
                "is_exact": is_exact,
                "num_equal": num_equal,
            },
        )

    def tell_end(self, step: int, why: str, *, is_own: bool) -> None:
        """Nothing is run twice any more.

        Args:
            step: Optimizer step.
            why: The end of a sentence.
            is_own: Whether it is about this rank alone.
        """
        self._note(f"Micro-batches are not replayed: {why}.", step, is_own=is_own)

    def _note(self, message: str, step: int, *, is_own: bool = False) -> None:
        if is_own or self._session.rank == 0:
            self._session.peers.record("notice", message, step=step, rule=RULE)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
