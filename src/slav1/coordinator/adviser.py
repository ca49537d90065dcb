"""What a policy is asked about a finding, and what it is told of the job."""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from slav1.breach import Breach, Fact, Status
from slav1.contract import Contract, PolicySettings, Rule
from slav1.coordinator.rollbacks import Rollbacks
from slav1.detectors._fragmentation import fragmentation_percent
from slav1.policy import Answer, Circumstances, Verdict, question
from slav1.sample import Sample

FRAGMENTATION = "gpu_fragmentation_rate"
"""Share of the device memory held by torch's allocator that is in no tensor, in percent."""

STALL = "step_stall_seconds"
"""Time since any rank ended a step, in seconds."""

_NO_METRICS = ("rank", "step", "time_s", "batch")


class Asked(Protocol):
    """Somebody who answers questions later, as :class:`~slav1.policy.process.PolicyProcess`."""

    settings: PolicySettings

    def ask(self, number: int, document: str) -> bool: ...

    def answers(self) -> list[tuple[int, Answer]]: ...

    def has_ended(self) -> bool: ...

    def give_up(self) -> None: ...

    def why_silent(self) -> str: ...


class Adviser:
    """Keeps what a policy is told, and asks it. Never waits."""

    def __init__(
        self, asked: Asked, contract: Contract, metadata: Mapping[str, str | int | bool]
    ) -> None:
        """Starts with nothing known of the run.

        Args:
            asked: Who answers.
            contract: The contract in force.
            metadata: What the job is.
        """
        self.asked = asked
        """Who answers."""
        self._contract = contract
        self._metadata = {**asked.settings.metadata, **metadata}
        self._samples: dict[int, Sample] = {}
        self._last_step_s: float | None = None
        self._num_breaches: Counter[str] = Counter()
        self._num_asked = 0

    @property
    def settings(self) -> PolicySettings:
        """The clause of the contract."""
        return self.asked.settings

    def on_samples(self, samples: Iterable[Sample], now_s: float) -> None:
        """Ranks have made steps."""
        for sample in samples:
            self._samples[sample.rank] = sample
            self._last_step_s = now_s

    def know(self, samples: Iterable[Sample]) -> None:
        """The last step of each rank is one of these, or not known."""
        self._samples = {sample.rank: sample for sample in samples}

    def on_breach(self, rule: str) -> None:
        """A breach has been judged."""
        self._num_breaches[rule] += 1

    def wants(self, breach: Breach) -> bool:
        """Whether the policy has a say in a finding."""
        rules = self.settings.rules
        return breach.status is Status.BREACH and (not rules or breach.rule in rules)

    def ask(
        self,
        breach: Breach,
        rule: Rule,
        table: Verdict,
        *,
        now_s: float,
        rollbacks: Rollbacks,
        can_roll_back: bool,
    ) -> int | None:
        """Asks about a breach.

        Returns:
            Number that the answer will have; None if there will be none.
        """
        document = self.document(
            breach,
            rule,
            table,
            now_s=now_s,
            rollbacks=rollbacks,
            can_roll_back=can_roll_back,
        )
        self._num_asked += 1
        return self._num_asked if self.asked.ask(self._num_asked, document) else None

    def document(
        self,
        breach: Breach,
        rule: Rule,
        table: Verdict,
        *,
        now_s: float | None,
        rollbacks: Rollbacks,
        can_roll_back: bool,
    ) -> str:
        """Writes the input document about a breach, as JSON text.

        Args:
            breach: What was found.
            rule: The rule it belongs to.
            table: What the contract's table says about it.
            now_s: Clock of :meth:`on_samples`, in seconds; None if there is none.
            rollbacks: How often the run has gone back.
            can_roll_back: Whether the run's host can go back to a checkpoint.
        """
        known = Circumstances(
            metadata={**self._metadata, "can_roll_back": can_roll_back},
            # What the finding itself is about was measured closer to it.
            metrics={**self._metrics(breach.rank, now_s), **_measured(breach.evidence)},
            history={
                "breaches": self._num_breaches[rule.name],
                "rollbacks": rollbacks.num_all,
                "rollbacks_within_window": rollbacks.num_within(breach.step),
            },
        )
        return json.dumps(question(breach, rule, table, known))

    def _metrics(self, rank: int | None, now_s: float | None) -> dict[str, float]:
        sample = self._samples.get(min(self._samples, default=-1) if rank is None else rank)
        found = {} if sample is None else metrics_of(sample)
        if rank is None:
            rates = [metrics_of(each).get(FRAGMENTATION) for each in self._samples.values()]
            known = [rate for rate in rates if rate is not None]
            found |= {FRAGMENTATION: max(known)} if known else {}
        if self._last_step_s is not None and now_s is not None:
            found[STALL] = max(0.0, now_s - self._last_step_s)
        return found


def metrics_of(sample: Sample) -> dict[str, float]:
    """What a step's sample tells a policy: its numbers, without those that are not finite."""
    values = {
        each.name: getattr(sample, each.name)
        for each in dataclasses.fields(sample)
        if each.name not in _NO_METRICS
    }
    found = {
        name: value
        for name, value in values.items()
        if isinstance(value, float) and math.isfinite(value)
    }
    rate = fragmentation_percent(sample)
    return found if rate is None else {**found, FRAGMENTATION: rate}


def _measured(evidence: Mapping[str, Fact]) -> dict[str, float]:
    values = {name: evidence.get(name) for name in (FRAGMENTATION, STALL)}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, float) and math.isfinite(value)
    }


def metadata_of(contract: Contract) -> dict[str, str]:
    """What the contract alone tells of the job."""
    stall = contract.rules["stall"].detector
    return {"level": contract.level_name, "job_type": stall.job_type}  # type: ignore[attr-defined]
