"""The line itself: events in, findings out. Pure, and the same one everywhere."""

from collections.abc import Mapping
from typing import Any

from slav1.breach import Breach, Status
from slav1.detectors._detector import Detector, Event
from slav1.sample import Audit, Pulse, Replicas, Rerun, Round, Sample, Save, Usage
from slav1.state import from_plain, to_plain


def _is_always(event: Event) -> bool:
    """Most detectors have a use for whatever they watch."""
    del event
    return True


def _rank_of(event: Event) -> int | None:
    """The rank that an event is about; None for one of the job."""
    return getattr(event, "rank", None)


class Guard:
    """Shows every event to every detector that watches its kind.

    The monitor, the coordinator, ``sla replay`` and the tests run this one class.
    """

    def __init__(self, detectors: Mapping[str, Detector]) -> None:
        """Takes the detectors by the name of their rule."""
        self._detectors = dict(detectors)
        self._states: dict[str, dict[int | None, Any]] = {name: {} for name in detectors}
        self._watching = {
            kind: [
                (name, each, getattr(each, "is_about", _is_always))
                for name, each in self._detectors.items()
                if kind in each.WATCHES
            ]
            for kind in (Sample, Round, Pulse, Save, Audit, Replicas, Rerun, Usage)
        }
        self.num_seen = dict.fromkeys(detectors, 0)
        """Events each rule has seen, counted over all ranks."""

    def observe(self, event: Event) -> list[Breach]:
        """Returns what the detectors find in ``event``.

        A detector that fails is switched off, and a notice says so: one rule must not
        take the others along.
        """
        rank = _rank_of(event)
        found = []
        for name, detector, is_about in self._watching[type(event)]:
            states = self._states[name]
            try:
                state = states[rank] if rank in states else detector.start()
                states[rank], breach = detector.observe(state, event)
                self.num_seen[name] += is_about(event)
            except Exception as error:  # noqa: BLE001 - whatever a detector of a user raises
                found.append(self._switch_off(name, event, error))
                continue
            if breach is not None:
                found.append(breach)
        return found

    def _switch_off(self, name: str, event: Event, error: Exception) -> Breach:
        for kind, detectors in self._watching.items():
            self._watching[kind] = [entry for entry in detectors if entry[0] != name]
        # Its silence means nothing any more, also in the verdict.
        self.num_seen[name] = 0
        return Breach(
            rule=name,
            status=Status.NOTICE,
            is_actionable=False,
            rank=_rank_of(event),
            step=event.step,
            statistic=None,
            limit=None,
            unit="",
            message=f"Rule {name} failed and is off for the rest of the run: "
            f"{type(error).__name__}: {error}.",
        )

    def forget_steps(self, rank: int | None) -> None:
        """Lets the rules of steps start afresh, as after going back to a checkpoint.

        Rules that watch clocks, saves or memory keep what they know: neither a process nor a
        disk has changed because training went back.

        Args:
            rank: Whose memories are dropped; None for those of all ranks together.
        """
        for name, detector in self._detectors.items():
            if not {Pulse, Save, Usage} & set(detector.WATCHES):
                self._states[name].pop(rank, None)

    def state_dict(self) -> dict[str, Any]:
        """Returns all memories as plain values, for a checkpoint."""
        return {
            name: {
                "job" if rank is None else str(rank): to_plain(state)
                for rank, state in kept.items()
            }
            for name, kept in self._states.items()
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> list[str]:
        """Goes on from saved memories.

        Returns:
            Names of the rules whose memory could not be used, as after a change of
            version or of a rule's variant; they start afresh.
        """
        unusable = []
        for name, states in plain.items():
            detector = self._detectors.get(name)
            if detector is None:
                continue
            try:
                self._states[name] = {
                    None if rank == "job" else int(rank): from_plain(detector.start(), state)
                    for rank, state in states.items()
                }
            except (ValueError, TypeError, AttributeError):
                unusable.append(name)
        return unusable
