"""Checks one checkpoint on all ranks at once, each reading its share."""

from pathlib import Path
from typing import Any

from slav1.checkpoint._line import LEADER, Line
from slav1.checkpoint._meeting import together
from slav1.checkpoint._seal import share_out
from slav1.checkpoint._sweep import sweep_once
from slav1.checkpoint.generations import Generations, read_generations
from slav1.checkpoint.manifest import Manifest, ManifestError
from slav1.checkpoint.verify import (
    ITSELF,
    Problem,
    check_members,
    check_sizes,
    verify_single,
)


def check_together(line: Line, path: Path, topic: str) -> tuple[Manifest | None, list[Problem]]:
    """Collective. Verifies a checkpoint; all ranks get the same answer.

    Returns:
        What it is, None if it is not ours; and what is wrong with it, nothing if it is whole.

    Raises:
        StageError: If a rank could not even look.
        PeersMissingError: If a rank did not come.
    """

    def describe() -> dict[str, Any] | None:
        if not line.is_leader:
            return None
        # A replacement that was cut short between two renames is put right first.
        sweep_once(line, path.parent)
        try:
            generations = read_generations(path)
        except ManifestError as error:
            return {"damaged": str(error)}
        is_single = not path.is_dir()
        return {"is_single": is_single, "text": generations.to_json() if generations else None}

    limit_s = line.settings.limit_s
    described = together(line.peers, f"{topic}: manifest", describe, limit_s=limit_s)[LEADER]
    if "damaged" in described:
        return None, [Problem(member=ITSELF, check="manifest", reason=described["damaged"])]
    if described["text"] is None:
        return None, []
    generations = Generations.from_json(described["text"])

    def look() -> dict[str, Any]:
        if described["is_single"]:
            return _look_at_file(line, path, generations)
        return _look_at_share(line, path, generations.new)

    answers = together(line.peers, f"{topic}: members", look, limit_s=limit_s)
    problems = [Problem(**one) for answer in answers for one in answer["problems"]]
    which = answers[LEADER]["which"]
    if which is None and not problems:
        return None, []
    manifest = generations.new if which is None else generations.manifests[which]
    return manifest, problems


def _look_at_share(line: Line, path: Path, manifest: Manifest) -> dict[str, Any]:
    """Every rank sees that all is there, and reads its share."""
    problems = check_sizes(path, manifest)
    if not problems:
        ranks = list(range(line.peers.world_size))
        sizes = {name: member.size for name, member in manifest.members.items()}
        shares = share_out(sizes, ranks, dict.fromkeys(ranks, ""))
        mine = [name for name, rank in shares.items() if rank == line.peers.rank]
        problems = check_members(path, manifest, mine, from_medium=False)
    return {"which": 0, "problems": [_plain(problem) for problem in problems]}


def _look_at_file(line: Line, path: Path, generations: Generations) -> dict[str, Any]:
    """One rank reads the file; the others see that it is there."""
    if not line.is_leader:
        problems = [check_sizes(path, manifest) for manifest in generations.manifests]
        seen = any(not one for one in problems) or path.exists()
        return {"which": None, "problems": [] if seen else [_plain(problems[0][0])]}
    report = verify_single(path, generations, from_medium=False)
    which = None
    if report.manifest is not None:
        which = generations.manifests.index(report.manifest)
    return {"which": which, "problems": [_plain(problem) for problem in report.problems]}


def _plain(problem: Problem) -> dict[str, str]:
    return {"member": problem.member, "check": problem.check, "reason": problem.reason}
