"""What a host says about the state that it wants saved."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFacts:
    """One save, as seen by one rank.

    Raises:
        ValueError: If the step is negative or the kind is not known.
    """

    step: int
    """Last optimizer step that the state contains, from 0."""

    host: str
    """Who saves: ``lightning``, ``accelerate``, or a name of the caller's."""

    kind: Literal["replicated", "sharded"]
    """``replicated``: one rank writes what all hold. ``sharded``: all ranks write parts."""

    position: Mapping[str, Any] = field(default_factory=dict)
    """Data position and the like: plain values, kept in the manifest, taken from rank 0."""

    tensors: "Mapping[str, Tensor]" = field(default_factory=dict)
    """What this rank hands to be written, by the name it has in the file; see
    :func:`slav1.checkpoint.fingerprints.name_tensors`."""

    replicas: "Mapping[str, Tensor]" = field(default_factory=dict)
    """What must be equal on all ranks, such as parameters. Its fingerprint is the vote."""

    may_be_infinite: Collection[str] = ()
    """Names in ``tensors`` whose numbers say nothing about health: buffers that mask with
    infinities, what callbacks keep as the best score so far."""

    is_healthy: bool = True
    """Whether no breach is open. A state that is not finite counts as unhealthy anyway."""

    lacks: str = ""
    """What nobody can go on without and is not saved, as the object of a sentence; it makes the
    state unhealthy too. Empty if all is there."""

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError(f"step must be at least 0, got {self.step}.")
        if self.kind not in ("replicated", "sharded"):
            raise ValueError(f"kind must be 'replicated' or 'sharded', got {self.kind!r}.")
