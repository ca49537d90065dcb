"""One save, from the state in memory to the commit."""

import contextlib
import errno
import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slav1.checkpoint._commit import commit_file, commit_folder, what_lies_at
from slav1.checkpoint._content import Content
from slav1.checkpoint._disk import remove
from slav1.checkpoint._line import LEADER, Commit, Line
from slav1.checkpoint._meeting import StageError, together
from slav1.checkpoint._names import beside, place_of, sidecar_of
from slav1.checkpoint._seal import flush_own_machine, seal, share_out
from slav1.checkpoint._state import FiniteCheck, StateFacts, look_at
from slav1.checkpoint.digests import Digest
from slav1.checkpoint.errors import SaveFailedError
from slav1.checkpoint.facts import SaveFacts
from slav1.checkpoint.manifest import Manifest
from slav1.checkpoint.peers import PeersMissingError
from slav1.checkpoint.verify import ITSELF, member_path, members_of
from slav1.checkpoint.votes import Verdict, Vote, judge_votes

FULL_BYTES = 1 << 16
"""A disk with less room than this is full for whoever writes a checkpoint, in bytes."""

PACKAGES = ("slav1", "torch", "lightning", "accelerate", "deepspeed", "safetensors")


class _NotSavedError(Exception):
    """A reason for which a save does not become a checkpoint; the same on all ranks."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Save:
    """One rank's part in one save.

    Args:
        line: The run's checkpoint line.
        path: Where the checkpoint shall lie.
        write: Writes the state to the path that it is given, beside ``path``.
        facts: What is saved.
        number: Number of the save on this line, the same on all ranks.
    """

    def __init__(
        self,
        line: Line,
        path: Path,
        write: Callable[[Path], None],
        facts: SaveFacts,
        number: int,
    ) -> None:
        self._line = line
        self._path = place_of(path)
        self._write = write
        self._facts = facts
        self._number = number
        self._staging: Path | None = None
        self._seconds: dict[str, float] = {}
        self._content = Content()

    def run(self) -> Commit:
        """Collective. Carries the save out.

        Raises:
            SaveFailedError: On all ranks, if it did not become a checkpoint.
        """
        try:
            return self._run()
        except StageError as error:
            failed = self._failed(str(error), tuple(error.reasons), Verdict(is_committed=False))
            raise failed from error
        except _NotSavedError as error:
            raise self._failed(str(error), error.verdict.ranks, error.verdict) from error
        except PeersMissingError as error:
            nobody_else = Verdict(is_committed=False)
            raise self._failed(str(error), error.missing, nobody_else) from error
        except BaseException:
            # Ctrl-C: a process that lives on, as a notebook's does, is never taken for gone.
            self._clear_away()
            raise

    def _run(self) -> Commit:
        state, begun = self._begin()
        self._judge(begun)
        assert self._staging is not None
        staging = self._staging
        finite = FiniteCheck(self._facts)
        self._stage("write", lambda: self._call(staging))
        # Only now has every rank written: what lies there is all that there will be.
        seen = self._stage("list", lambda: self._list(finite))
        doubt = _doubt(begun, seen)
        sealed = self._stage("seal", lambda: self._seal(seen))
        members = {
            name: Digest(**digest) for one in sealed for name, digest in one["members"].items()
        }
        if self._line.settings.verify == "content":
            self._prove_content(sealed, state)
        manifest = self._manifest(begun, members, is_healthy=not doubt)
        self._stage("commit", lambda: self._commit(manifest))
        return Commit(
            path=self._path,
            step=manifest.step,
            manifest=manifest,
            is_healthy=manifest.is_healthy,
            doubt=doubt,
            seconds=self._seconds,
        )

    # -- before the write ---------------------------------------------------------------------

    def _begin(self) -> tuple[StateFacts, list[dict[str, Any]]]:
        found: list[StateFacts] = []

        def look() -> dict[str, Any]:
            settings = self._line.settings
            with_content = settings.verify == "content"
            found.append(look_at(self._facts, with_content=with_content, algorithm=settings.digest))
            return self._introduce(found[0])

        begun = self._stage("look", look)
        return found[0], begun

    def _introduce(self, state: StateFacts) -> dict[str, Any]:
        """What this rank tells the others before anything is written."""
        mine = {
            "path": str(self._path),
            "step": self._facts.step,
            "kind": self._facts.kind,
            "replicas": state.replicas,
            "content": state.content,
            "is_healthy": self._facts.is_healthy,
            "lacks": self._facts.lacks,
        }
        if self._line.is_leader:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            staging = beside(self._path, "new", self._line.writer, self._number, self._facts.step)
            mine |= {
                "staging": str(staging),
                "sequence": self._next_sequence(),
                "newest": self._newest(),
                "time_ns": time.time_ns(),
                "position": json.loads(json.dumps(dict(self._facts.position))),
                "versions": _versions(),
            }
        return mine

    def _next_sequence(self) -> int:
        known = [manifest.sequence for _, manifest in self._line.newest_first()]
        return 1 + max([self._line.catalogue.last_sequence(), *known], default=0)

    def _newest(self) -> dict[str, Any] | None:
        """The newest checkpoint: what rank 0 knows of it counts for all ranks."""
        known = self._line.newest_first()
        if not known:
            return None
        path, manifest = known[0]
        return {"path": str(path), "step": manifest.step, "content": manifest.content}

    def _judge(self, begun: list[dict[str, Any]]) -> None:
        leader = begun[LEADER]
        for name in ("path", "kind"):
            apart = [rank for rank, one in enumerate(begun) if one[name] != leader[name]]
            if apart:
                other = begun[apart[0]][name]
                raise _NotSavedError(
                    Verdict(
                        is_committed=False,
                        ranks=tuple(apart),
                        reason=f"Ranks save different things: {name} is {leader[name]} on rank "
                        f"{LEADER} and {other} on ranks {apart}.",
                    )
                )
        votes = [
            Vote(rank=rank, step=one["step"], root=one["replicas"])
            for rank, one in enumerate(begun)
        ]
        verdict = judge_votes(votes, self._facts, quorum=self._line.settings.quorum)
        if not verdict.is_committed:
            raise _NotSavedError(verdict)
        if verdict.reason and self._line.is_leader:
            self._line.peers.record(
                "notice",
                verdict.reason,
                step=self._facts.step,
                rule="replica_divergence",
                ranks=list(verdict.ranks),
            )
        self._staging = Path(leader["staging"])
        self._refuse_the_same_again(begun)

    def _refuse_the_same_again(self, begun: list[dict[str, Any]]) -> None:
        content = _content_root(begun)
        newest = begun[LEADER]["newest"]
        if not content or newest is None:
            return
        if newest["content"] == content and newest["step"] != begun[LEADER]["step"]:
            raise _NotSavedError(
                Verdict(
                    is_committed=False,
                    reason=f"Every tensor is bit for bit that of {newest['path']} (step "
                    f"{newest['step']}) although steps were taken since: the state does not "
                    "change, or it is not what is being trained.",
                )
            )

    # -- write and prove ----------------------------------------------------------------------

    def _call(self, staging: Path) -> None:
        try:
            # What the host returns is its own affair, and may be nothing that can be sent.
            self._write(staging)
        except RuntimeError as error:
            # Some writers end on a full disk with an error about themselves.
            num_free = shutil.disk_usage(staging.parent).free
            if num_free >= FULL_BYTES:
                raise
            text = f"{os.strerror(errno.ENOSPC)}: {num_free} bytes are free"
            raise OSError(errno.ENOSPC, text, str(staging.parent)) from error

    def _list(self, finite: FiniteCheck) -> dict[str, Any]:
        """What this rank sees of what all have written, and thinks of what it handed over."""
        assert self._staging is not None
        mine: dict[str, Any] = {"host": socket.gethostname(), "non_finite": finite.result()}
        if os.path.lexists(self._staging):
            sizes = self._sizes()
            mine |= {"num": len(sizes), "bytes": sum(sizes.values())}
        return mine

    def _sizes(self) -> dict[str, int]:
        assert self._staging is not None
        names = members_of(self._staging)
        return {name: member_path(self._staging, name).stat().st_size for name in names}

    def _seal(self, seen: list[dict[str, Any]]) -> dict[str, Any]:
        """Proves this rank's share of the files."""
        assert self._staging is not None
        rank = self._line.peers.rank
        workers = self._workers(seen)
        if rank not in workers:
            return {"members": {}}
        sizes = self._sizes()
        hosts = {one: seen[one]["host"] for one in workers}
        settings = self._line.settings
        for name in flush_own_machine(self._staging, list(sizes), rank, workers, hosts):
            self._line.disk.fsync(member_path(self._staging, name))
        shares = share_out(sizes, workers, hosts)
        mine = [name for name in sizes if shares[name] == rank]
        found = {}
        for name in mine:
            file = member_path(self._staging, name)
            one = seal(file, settings.verify, settings.digest, self._line.disk)
            found[name] = {"size": one.size, "root": one.root}
        if settings.verify == "content":
            self._content = Content.read(self._staging, mine, settings.digest)
        return {"members": found, **self._content.as_plain()}

    def _workers(self, seen: list[dict[str, Any]]) -> list[int]:
        """The ranks that see what was written, all of it."""
        leader = seen[LEADER]
        if not leader.get("num"):
            raise FileNotFoundError(
                f"nothing was written to {self._staging}: the writer did nothing, or the folder "
                f"is not one that rank {LEADER} sees"
            )
        what = (leader["num"], leader["bytes"])
        seeing = [r for r, one in enumerate(seen) if (one.get("num"), one.get("bytes")) == what]
        apart = sorted(set(range(len(seen))) - set(seeing))
        if apart and self._facts.kind == "sharded":
            raise FileNotFoundError(
                f"ranks {apart} see other files in {self._staging} than rank {LEADER}: parts of "
                "one checkpoint have to be written to a folder that all ranks share"
            )
        return seeing

    def _prove_content(self, sealed: list[dict[str, Any]], state: StateFacts) -> None:
        """Collective. Every tensor that was in memory is found in what was read back."""

        def compare() -> None:
            self._content.compare(state.fingerprints, sealed)

        self._stage("content", compare)

    # -- commit -------------------------------------------------------------------------------

    def _manifest(
        self, begun: list[dict[str, Any]], members: dict[str, Digest], *, is_healthy: bool
    ) -> Manifest:
        leader = begun[LEADER]
        return Manifest(
            run=self._line.run,
            host=self._facts.host,
            kind=self._facts.kind,
            step=leader["step"],
            sequence=leader["sequence"],
            attempt=self._line.attempt,
            training=self._line.training,
            world_size=self._line.peers.world_size,
            is_healthy=is_healthy,
            verify=self._line.settings.verify,
            digest=self._line.settings.digest,
            members=dict(sorted(members.items())),
            content=_content_root(begun),
            replicas=leader["replicas"],
            position=leader["position"],
            versions=leader["versions"],
            time_ns=leader["time_ns"],
        )

    def _commit(self, manifest: Manifest) -> None:
        assert self._staging is not None
        if not self._line.is_leader:
            return
        if set(manifest.members) == {ITSELF}:
            # Reading the old file again would cost as much as proving the new one.
            present = self._line.marked(self._path) or what_lies_at(self._path, manifest)
            commit_file(self._staging, self._path, manifest, present, self._line.disk)
            self._line.mark(self._path, manifest)
        else:
            spare = beside(self._path, "old", self._line.writer, self._number, self._facts.step)
            commit_folder(self._staging, self._path, manifest, spare, self._line.disk)

    # -- failure ------------------------------------------------------------------------------

    def _failed(self, reason: str, ranks: tuple[int, ...], verdict: Verdict) -> SaveFailedError:
        self._clear_away()
        return SaveFailedError(
            path=self._path,
            step=self._facts.step,
            reason=reason,
            ranks=ranks,
            is_skewed=verdict.is_skewed,
            has_quorum=verdict.has_quorum,
        )

    def _clear_away(self) -> None:
        if not self._line.is_leader or self._staging is None:
            return
        for path in (self._staging, sidecar_of(self._staging)):
            if os.path.lexists(path):
                # What can't be removed now is recognised and removed by the next start.
                with contextlib.suppress(OSError):
                    remove(self._line.disk, path)

    def _stage(self, name: str, work: Callable[[], Any]) -> list[Any]:
        start = time.monotonic()

        def timed() -> Any:
            try:
                return work()
            finally:
                self._seconds[name] = time.monotonic() - start

        topic = f"checkpoint save {self._number}: {name}"
        return together(self._line.peers, topic, timed, limit_s=self._line.settings.limit_s)


def _doubt(begun: list[dict[str, Any]], seen: list[dict[str, Any]]) -> str:
    """Why the state is not healthy; '' if it is."""
    for rank, one in enumerate(seen):
        if one["non_finite"]:
            return f"{one['non_finite']} on rank {rank} holds numbers that are not finite."
    if ranks := [rank for rank, one in enumerate(begun) if not one["is_healthy"]]:
        return f"A breach is open on ranks {ranks}."
    lacks = next((one["lacks"] for one in begun if one["lacks"]), "")
    return f"It lacks {lacks}." if lacks else ""


def _content_root(begun: list[dict[str, Any]]) -> str:
    """The contents of all ranks in one text; '' if no rank gave any."""
    if not any(one["content"] for one in begun):
        return ""
    from slav1.checkpoint.fingerprints import root_of

    return root_of({str(rank): one["content"] for rank, one in enumerate(begun)})


@cache
def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
