"""The manifest: what a checkpoint is, and what every file of it has to contain."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast

from slav1.checkpoint.digests import Algorithm, Digest, new_hash

FORMAT = 1
"""Version of the manifest's form. A reader refuses later ones."""


class ManifestError(ValueError):
    """A manifest can't be read, or is not what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What was committed, for whoever wants to load it."""

    run: str
    """Identity of the run."""

    host: str
    """Who saved."""

    kind: Literal["replicated", "sharded"]
    """``replicated``: written by one rank for all. ``sharded``: parts from all ranks."""

    step: int
    """Last optimizer step contained."""

    sequence: int
    """Number of the commit in its run, from 1; goes on after restarts."""

    attempt: int
    """Start of the run that wrote it."""

    training: str = ""
    """Name of the run folder: what the starts of one training have in common, and not what
    the same script did at another time."""

    world_size: int
    """How many ranks there were."""

    is_healthy: bool
    """Whether no breach was open and every number finite."""

    verify: str
    """Level at which it was verified before it was committed."""

    digest: Algorithm
    """Which digest the members have."""

    members: Mapping[str, Digest]
    """Its files by relative path; ``.`` if it is one file. A root of '' was never taken."""

    content: str = ""
    """Fingerprint of all tensors; '' if not taken."""

    replicas: str = ""
    """Fingerprint that the ranks voted on; '' if they had none."""

    position: Mapping[str, Any] = field(default_factory=dict)
    """Data position and the like, from the host."""

    versions: Mapping[str, str] = field(default_factory=dict)
    """Software that wrote it."""

    time_ns: int = 0
    """Wall clock of the commit, in nanoseconds since 1970."""

    def to_json(self) -> str:
        """Strict JSON with a seal over it, so that damage to the manifest itself shows."""
        plain = {"format": FORMAT, **asdict(self)}
        return json.dumps({**plain, "seal": _seal(plain, self.digest)}, indent=1, sort_keys=True)

    @property
    def seal(self) -> str:
        """Digest of the manifest: tells two checkpoints apart."""
        return _seal({"format": FORMAT, **asdict(self)}, self.digest)

    @property
    def num_bytes(self) -> int:
        """Size of all members together."""
        return sum(member.size for member in self.members.values())

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """Reads back what :meth:`to_json` wrote.

        Raises:
            ManifestError: If it is no manifest, of a later form, or has been changed.
        """
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise ManifestError(f"The manifest is no JSON: {error}.") from error
        return cls.from_plain(plain)

    @classmethod
    def from_plain(cls, plain: Any) -> "Manifest":
        """The same from decoded JSON."""
        if not isinstance(plain, dict) or not isinstance(plain.get("format"), int):
            raise ManifestError("The manifest has no format number.")
        if plain["format"] > FORMAT:
            raise ManifestError(
                f"The manifest has format {plain['format']}; this version reads up to {FORMAT}. "
                "Load it with a newer slav1."
            )
        seal = plain.pop("seal", None)
        if plain.get("digest") not in ("xxh3", "sha256") or seal != _seal(plain, plain["digest"]):
            raise ManifestError("The manifest was changed after it was written.")
        known = {part.name for part in fields(cls)}
        try:
            members = {name: Digest(**one) for name, one in plain["members"].items()}
            given = {name: value for name, value in plain.items() if name in known}
            return cls(**{**given, "members": members})
        except (TypeError, AttributeError, KeyError) as error:
            raise ManifestError(f"The manifest lacks something: {error}.") from error


def _seal(plain: Mapping[str, Any], algorithm: Algorithm) -> str:
    seal = new_hash(algorithm)
    seal.update(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
    return cast("str", seal.hexdigest())
