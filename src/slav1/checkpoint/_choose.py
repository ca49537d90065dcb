"""Chooses the checkpoint to go on from: the newest that is healthy, whole and gets somewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slav1.checkpoint._check import check_together
from slav1.checkpoint._commit import set_aside
from slav1.checkpoint._find import Found, find_checkpoints
from slav1.checkpoint._line import LEADER, Choice, Line
from slav1.checkpoint._meeting import StageError, together
from slav1.checkpoint._sweep import sweep_once
from slav1.checkpoint.errors import NoGoodCheckpointError
from slav1.checkpoint.manifest import Manifest


@dataclass(slots=True, kw_only=True)
class _Candidate:
    path: Path
    sequence: int
    """At most this: a single file may turn out to be the generation before."""

    attempts: dict[str, int]
    """How often it was resumed from without getting past it, by seal."""

    damaged: str = ""
    manifest: Manifest | None = field(default=None)
    """What it was found to be."""


def choose(
    line: Line, folders: Sequence[Path], *, before_step: int | None, training: str | None
) -> Choice | None:
    """Collective. See :meth:`slav1.checkpoint.Shelf.choose`."""
    number = line.number("choose")
    topic = f"checkpoint choose {number}"
    found = together(
        line.peers,
        topic,
        lambda: _list(line, folders, training) if line.is_leader else None,
        limit_s=line.settings.limit_s,
    )[LEADER]
    candidates = [_Candidate(**{**one, "path": Path(one["path"])}) for one in found["candidates"]]
    passed = {Path(path): reason for path, (_, reason) in found["gone"].items()}
    if not candidates and not passed:
        return None
    while candidates:
        candidates.sort(key=lambda one: one.sequence)
        best = candidates.pop()
        if best.manifest is None and not _prove(line, best, f"{topic}: {best.path}", passed):
            continue
        assert best.manifest is not None
        if best.manifest.sequence < best.sequence:
            # Older than its name promised: others may come first.
            best.sequence = best.manifest.sequence
            candidates.append(best)
            continue
        if reason := _unfit(line, best, best.manifest, before_step):
            passed[best.path] = reason
            continue
        _tell_missing(line, found["gone"], best.manifest)
        with line.lock:
            line.known[best.path] = best.manifest
            line.proved.add(best.manifest.seal)
            if before_step is None:
                line.loaded_sequence = best.manifest.sequence
        return line.choice(best.path, best.manifest)
    raise NoGoodCheckpointError(passed)


def _tell_missing(line: Line, gone: Mapping[str, tuple[int, str]], chosen: Manifest) -> None:
    """Says which newer ones are passed over because nothing vouches for them."""
    if not line.is_leader:
        return
    for path, (sequence, reason) in gone.items():
        if sequence > chosen.sequence:
            line.peers.record("notice", f"{path} is newer and is not used: {reason}", path=path)


def reject(
    line: Line, path: Path, reason: str, manifest: Manifest | None, *, is_corrupt: bool = False
) -> None:
    """Sets a checkpoint aside and says why. The leader acts; all ranks forget it."""
    with line.lock:
        line.known.pop(path, None)
    if not line.is_leader:
        return
    try:
        aside = set_aside(path, line.disk)
        where = f"It lies at {aside} now."
        line.catalogue.add("set_aside", path, manifest, aside=str(aside), reason=reason)
    except OSError as error:
        where = f"It could not be renamed: {error}."
    line.peers.record(
        "checkpoint_rejected",
        f"{path} is not used: {reason} {where}",
        step=manifest.step if manifest else None,
        path=str(path),
        reason=reason,
        is_corrupt=is_corrupt,
    )


def _list(line: Line, folders: Sequence[Path], training: str | None) -> dict[str, Any]:
    """What may be chosen, and what was committed and is nothing to go on from any more."""
    known = line.catalogue.folders()
    everywhere = list(dict.fromkeys([*folders, *known]))
    for folder in everywhere:
        sweep_once(line, folder)
    committed = [one for one in line.catalogue.lines() if one["what"] == "committed"]
    last = {Path(one["path"]): int(one["sequence"]) for one in committed}
    found = [
        one
        for one in find_checkpoints(everywhere, line.run, ours=last)
        if training is None or _is_of_training(one, training)
    ]
    gone = line.catalogue.gone(training)
    for one in found:
        gone.pop(str(one.path), None)
    return {
        "candidates": [_describe(line, one, last.get(one.path, 0)) for one in found],
        "gone": gone,
    }


def _is_of_training(found: Found, training: str) -> bool:
    manifests = found.generations.manifests if found.generations else []
    return any(manifest.training == training for manifest in manifests)


def _describe(line: Line, found: Found, last_sequence: int) -> dict[str, Any]:
    manifests = found.generations.manifests if found.generations else []
    return {
        "path": str(found.path),
        "sequence": manifests[0].sequence if manifests else last_sequence,
        "attempts": {one.seal: line.catalogue.num_attempts(one) for one in manifests},
        "damaged": found.reason,
    }


def _prove(line: Line, one: _Candidate, topic: str, passed: dict[Path, str]) -> bool:
    """Collective. Finds out what a candidate is; False if it is nothing to go on from."""
    if one.damaged:
        passed[one.path] = one.damaged
        reject(line, one.path, one.damaged, None)
        return False
    try:
        manifest, problems = check_together(line, one.path, topic)
    except StageError as error:
        # A rank that can't look says nothing about the checkpoint: it stays where it is.
        passed[one.path] = f"not every rank can read it: {error}"
        return False
    if problems:
        first = problems[0]
        named = "" if first.member == "." else f"member {first.member}: "
        reason = f"{named}{first.reason} (check: {first.check})"
        passed[one.path] = reason
        is_corrupt = first.check in ("digest", "size")
        reject(line, one.path, reason, manifest, is_corrupt=is_corrupt)
        return False
    if manifest is None or manifest.run != line.run:
        passed[one.path] = "what lies under its name is not a checkpoint of this run."
        return False
    one.manifest = manifest
    return True


def _unfit(line: Line, one: _Candidate, manifest: Manifest, before_step: int | None) -> str | None:
    if not manifest.is_healthy:
        return f"the state of step {manifest.step} was not healthy when it was saved."
    if before_step is not None and not line.is_of_this_training(manifest):
        return "it is of another training with the same script."
    if before_step is not None and manifest.step >= before_step:
        return f"step {manifest.step} is not before step {before_step}."
    attempts = one.attempts.get(manifest.seal, 0)
    if attempts < line.settings.max_attempts:
        return None
    reason = (
        f"the run was resumed from it {attempts} times and never got to another checkpoint "
        f"(max_attempts: {line.settings.max_attempts})."
    )
    if line.is_leader:
        line.peers.record(
            "checkpoint_rejected",
            f"{one.path} is passed over: {reason}",
            step=manifest.step,
            path=str(one.path),
            reason=reason,
        )
    return reason
