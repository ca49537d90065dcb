"""What a rank knows of its own state before anything is written."""

from dataclasses import dataclass, field

from slav1.checkpoint.digests import Algorithm
from slav1.checkpoint.facts import SaveFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFacts:
    """Fingerprints of a rank's state."""

    replicas: str = ""
    """Root over what has to be equal on all ranks; the vote."""

    content: str = ""
    """Root over all that this rank hands to be written; '' below level ``content``."""

    fingerprints: dict[str, str] = field(default_factory=dict)
    """The same by tensor."""

    non_finite: str | None = None
    """Name of the first tensor with a number that is not finite."""


def look_at(facts: SaveFacts, *, with_content: bool, algorithm: Algorithm) -> StateFacts:
    """Takes the fingerprints that a save needs."""
    if not facts.tensors and not facts.replicas:
        return StateFacts()
    # Only a caller that handed tensors has torch; the monitor never comes here.
    from slav1.checkpoint.fingerprints import fingerprint_tensors, name_non_finite, root_of

    replicas = fingerprint_tensors(facts.replicas, algorithm)
    content = fingerprint_tensors(facts.tensors, algorithm) if with_content else {}
    judged = {
        name: tensor for name, tensor in facts.tensors.items() if name not in facts.may_be_infinite
    }
    return StateFacts(
        replicas=root_of(replicas, algorithm),
        content=root_of(content, algorithm),
        fingerprints=content,
        non_finite=name_non_finite({**judged, **facts.replicas}),
    )
