"""What table and policy of a contract say about breaches, found anew or long ago."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slav1.breach import Breach, Fact
from slav1.cli._errors import CommandLineError
from slav1.cli._output import print_note, print_table
from slav1.cli._past_steps import PastSteps
from slav1.contract import Contract, Mode
from slav1.coordinator.adviser import Adviser, metadata_of
from slav1.coordinator.rollbacks import Rollbacks
from slav1.decision import Action
from slav1.ledger import Entry
from slav1.phase import Phase
from slav1.policy import Answer, PolicyError, Verdict, judge, overruled
from slav1.policy.process import PolicyProcess
from slav1.sample import Sample

_PHASES = {phase.name.lower(): phase for phase in Phase}
_ACTIONS = frozenset(action.name.lower() for action in Action)
_OF_VERDICT = ("would_have", "policy")
_OF_BREACH = ("is_actionable", "arl0", "asks_for")


class Judge:
    """Table and policy of one contract, over a recorded run."""

    def __init__(self, contract: Contract, policy: PolicyProcess | None) -> None:
        """Starts with nothing judged.

        Args:
            contract: The contract to judge by.
            policy: Its policy, ready to be asked; None if it has none.
        """
        self.contract = contract
        """The contract to judge by."""
        self._policy = policy
        self._told: set[str] = set()
        self._rollbacks = Rollbacks(contract.checkpoint)
        self.begin({})

    def begin(self, metadata: Mapping[str, str | int | bool]) -> None:
        """What comes now belongs to another start of the run."""
        facts = {**metadata_of(self.contract), **metadata}
        self._adviser = (
            None if self._policy is None else Adviser(self._policy, self.contract, facts)
        )

    def see(self, sample: Sample) -> None:
        """A rank has made a step."""
        if self._adviser is not None:
            self._adviser.on_samples([sample], sample.time_s)

    def know(self, samples: Iterable[Sample]) -> None:
        """These are the last steps that are known of the ranks, and no other."""
        if self._adviser is not None:
            self._adviser.know(samples)

    def went_back(self, step: int) -> None:
        """The run was sent back at the end of ``step``."""
        self._rollbacks.add(step)

    def verdict(self, breach: Breach, *, now_s: float | None = None) -> Verdict:
        """What is done about a breach.

        Args:
            breach: The breach.
            now_s: When, on the clock of the samples; None if that is not known.
        """
        rule = self.contract.rules[breach.rule]
        table = judge(breach, rule)
        if self._adviser is None or self._policy is None or not self._adviser.wants(breach):
            return table
        document = self._adviser.document(
            breach,
            rule,
            table,
            now_s=now_s,
            rollbacks=self._rollbacks,
            can_roll_back=True,
        )
        answer = self._policy.answer_to(document)
        self._adviser.on_breach(breach.rule)
        self._tell(answer)
        return overruled(
            table,
            answer,
            breach=breach,
            rule=rule,
            grant=self._adviser.settings.grant,
            can_roll_back=True,
        )

    def _tell(self, answer: Answer) -> None:
        if answer.problem is not None and answer.problem not in self._told:
            self._told.add(answer.problem)
            print_note(f"Policy: {answer.problem} The contract's table decides.")


@contextmanager
def judge_of(contract: Contract, copy: Path | None = None) -> Iterator[Judge]:
    """Opens the policy of a contract for as long as it is judged by.

    Args:
        contract: The contract.
        copy: Copy of the policy file as it was in force, to be taken instead of the file.

    Raises:
        CommandLineError: If the policy can't be used.
    """
    settings = contract.policy
    if settings is None:
        yield Judge(contract, None)
        return
    if settings.file is not None and copy is not None and copy.is_file():
        settings = replace(settings, file=str(copy))
    try:
        policy = PolicyProcess.open(settings)
    except PolicyError as error:
        raise CommandLineError(str(error)) from error
    try:
        if policy.first_problem is not None:
            print_note(f"Policy: {policy.first_problem}")
        yield Judge(contract, policy)
    finally:
        policy.close()


def judged_again(entries: Sequence[Entry], judge: Judge, run: Path) -> Iterator[Entry]:
    """Judges the breaches of a ledger by another contract.

    Args:
        entries: The ledger, all attempts.
        judge: The contract to judge by.
        run: Folder of the run, for what is kept of the ranks' steps.

    Yields:
        Each breach of a rule that the contract has, with its mode and action; what was
        done about it stands in ``evidence.before``. One of a rule that is off is a notice.
    """
    steps = PastSteps(run, entries)
    attempt = None
    for entry in entries:
        steps.pass_by(entry)
        if entry.attempt != attempt:
            attempt = entry.attempt
            judge.begin(metadata_in(entry, run))
        if entry.kind == "decision" and entry.action == "rollback" and entry.step is not None:
            judge.went_back(entry.step)
        if entry.kind == "breach" and entry.rule in judge.contract.rules:
            judge.know(steps.at(entry.step))
            yield _judged(entry, judge)


def print_changes(source: str, entries: Sequence[Entry]) -> None:
    """Prints past breaches with what was and what would be done."""
    rows = [
        [
            *("-" if place is None else str(place) for place in (entry.step, entry.rank)),
            entry.rule or "-",
            _word(entry.evidence["before"]),
            _word({"mode": entry.mode, "action": entry.action, **_would_have(entry.evidence)}),
            entry.message or "",
        ]
        for entry in entries
    ]
    if rows:
        print_table(["step", "rank", "rule", "was", "would be", "what"], rows)
    num_changed = sum(was != now for _, _, _, was, now, _ in rows)
    print_note(f"{source}: {num_changed} of {len(rows)} past breaches would be judged differently.")


def _judged(entry: Entry, judge: Judge) -> Entry:
    assert entry.rule is not None, "it was looked up"
    rule = judge.contract.rules[entry.rule]
    before = {"mode": entry.mode, "action": entry.action, **_would_have(entry.evidence)}
    kept = {name: value for name, value in entry.evidence.items() if name not in _OF_VERDICT}
    if rule.mode is Mode.OFF:
        evidence = {**kept, "before": before}
        return replace(entry, kind="notice", mode="off", action="log", evidence=evidence)
    verdict = judge.verdict(_breach(entry, kept))
    return replace(
        entry,
        mode=rule.mode.value,
        action=(verdict.would_have or verdict.action).name.lower(),
        evidence={**kept, "before": before, **verdict_facts(verdict)},
    )


def verdict_facts(verdict: Verdict) -> dict[str, Fact]:
    """What a ledger line says about a verdict beside its action."""
    found: dict[str, Fact] = {}
    if verdict.would_have is not None:
        found["would_have"] = verdict.would_have.name.lower()
    if verdict.policy is not None:
        found["policy"] = dict(verdict.policy)
    return found


def _breach(entry: Entry, evidence: Mapping[str, Fact]) -> Breach:
    """The finding that a line was written about."""
    arl0, asks_for = evidence.get("arl0"), evidence.get("asks_for")
    return Breach(
        rule=entry.rule or "",
        is_actionable=evidence.get("is_actionable") is not False,
        rank=entry.rank,
        step=entry.step,
        phase=_PHASES.get(entry.phase or ""),
        statistic=entry.statistic,
        limit=entry.limit,
        unit=entry.unit or "",
        arl0=arl0 if isinstance(arl0, float) else None,
        action=asks_for if isinstance(asks_for, str) and asks_for in _ACTIONS else None,
        message=entry.message or "",
        evidence={name: fact for name, fact in evidence.items() if name not in _OF_BREACH},
    )


def metadata_in(entry: Entry, run: Path) -> dict[str, str | int | bool]:
    """What the first line of a start tells of the job."""
    names = ("world_size", "num_nodes")
    counts = {name: entry.evidence[name] for name in names if name in entry.evidence}
    known = {name: value for name, value in counts.items() if isinstance(value, int)}
    return {"run_id": run.resolve().name, "attempt": entry.attempt, **known}


def _would_have(evidence: Mapping[str, Fact]) -> dict[str, Fact]:
    return {"would_have": evidence["would_have"]} if "would_have" in evidence else {}


def _word(what: Fact) -> str:
    """What was done, in two words at most."""
    assert isinstance(what, dict), "put together here"
    if what.get("mode") == Mode.OFF.value:
        return "off"
    action = what.get("action") or "log"
    return f"would {action}" if "would_have" in what else f"{action}"
