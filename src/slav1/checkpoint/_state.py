"""What a rank knows of its own state before anything is written."""

import threading
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


def look_at(facts: SaveFacts, *, with_content: bool, algorithm: Algorithm) -> StateFacts:
    """Takes the fingerprints that a save needs."""
    if not facts.tensors and not facts.replicas:
        return StateFacts()
    # Only a caller that handed tensors has torch; the monitor never comes here.
    from slav1.checkpoint.fingerprints import fingerprint_tensors, root_of

    replicas = fingerprint_tensors(facts.replicas, algorithm)
    content = fingerprint_tensors(facts.tensors, algorithm) if with_content else {}
    return StateFacts(
        replicas=root_of(replicas, algorithm),
        content=root_of(content, algorithm),
        fingerprints=content,
    )


class FiniteCheck:
    """Looks for numbers that are not finite while the state is being written.

    The state does not change meanwhile, and a core that waits for the disk has time for it.

    Args:
        facts: What is saved.
    """

    def __init__(self, facts: SaveFacts) -> None:
        masks = facts.may_be_infinite
        judged = {name: one for name, one in facts.tensors.items() if name not in masks}
        self._tensors = {**judged, **facts.replicas}
        self._found: str | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._look, name="slav1-finite", daemon=True)
        if self._tensors:
            self._thread.start()

    def result(self) -> str | None:
        """Waits; name of the first tensor with a number that is not finite, None if all are."""
        if self._tensors:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found

    def _look(self) -> None:
        from slav1.checkpoint.fingerprints import name_non_finite

        try:
            self._found = name_non_finite(self._tensors)
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._error = error
