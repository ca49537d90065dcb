"""The clause ``policy``: who is asked what a breach leads to, besides the table."""

import dataclasses
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slav1.contract.error import ContractError, did_you_mean, wrong_value
from slav1.contract.typed import build, plain
from slav1.decision import Action

SHIPPED = "slav1:"
"""Begins the name of a policy that comes with this package, as in ``slav1:stall.rego``."""

JOB_FACTS = (
    "attempt",
    "can_roll_back",
    "job_type",
    "level",
    "num_nodes",
    "run_id",
    "world_size",
)
"""What the input document tells of the job by itself; not for ``metadata``."""

_QUERY = re.compile(r"data(\.[A-Za-z_]\w*)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Who is asked about a breach, and what the answer may do.

    Either ``file`` or ``url`` is given.

    Raises:
        ValueError: If a setting is out of range, or both or neither of them are given.
    """

    file: str | None = None
    """Path of a Rego file, evaluated here; a relative one begins at the contract's file,
    or at the working folder where the contract is written in code."""

    url: str | None = None
    """Address of an Open Policy Agent server, ``http://host:8181`` for example."""

    query: str | None = None
    """Rego rule that answers, ``data.slav1.decision.action`` for example. None takes that
    one, or ``data.training.autoscale.allow`` from a file that has only this."""

    deadline_ms: int = 250
    """Time for an answer, counted from the finding, in milliseconds, 10 to 2000. After it
    the table decides. A save waits for it too."""

    grant: Action = Action.RESTART
    """What is done where the rule answers true or false and says true."""

    rules: tuple[str, ...] = ()
    """Rules whose breaches are asked about; none stands for all of them."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    """Further facts about the job, for the policy to look at."""

    def __post_init__(self) -> None:
        if (self.file is None) == (self.url is None):
            raise ValueError("file or url must be given, and only one of them.")
        if self.file is not None and (not self.file.strip() or "\0" in self.file):
            raise ValueError(f"file must be the path of a Rego file, got {self.file!r}.")
        if self.url is not None:
            _check_url(self.url)
        if self.query is not None and not _QUERY.fullmatch(self.query):
            raise ValueError(
                f"query must name a Rego rule, as in data.slav1.decision.action; got "
                f"{self.query!r:.80}."
            )
        if not 10 <= self.deadline_ms <= 2000:
            raise ValueError(f"deadline_ms must be 10 to 2000, got {self.deadline_ms}.")
        if self.grant is Action.LOG:
            raise ValueError("grant must be an action above log: log is what is done anyway.")
        for name in self.metadata:
            if name in JOB_FACTS:
                raise ValueError(
                    f"metadata must not hold {name}: the job says that itself "
                    "(job_type: rules.stall.job_type)."
                )

    @property
    def deadline_s(self) -> float:
        """The deadline in seconds."""
        return self.deadline_ms * 1e-3


def policy_from(raw: object, rules: Collection[str], folder: Path | None) -> PolicySettings | None:
    """Makes the clause of its plain form.

    Args:
        raw: None, a path or an address as text, or a mapping of settings.
        rules: Names of the rules there are.
        folder: Where a relative path begins; None for the working folder.

    Raises:
        ContractError: If it says anything that can't be kept.
    """
    if raw is None:
        return None
    if isinstance(raw, PolicySettings):
        raw = policy_to_plain(raw)
    if not isinstance(raw, str | Mapping):
        raise wrong_value(
            "policy", raw, "the path of a Rego file, the address of a server, or a mapping"
        )
    if isinstance(raw, str):
        if not raw.strip():
            raise wrong_value("policy", raw, "the path of a Rego file")
        raw = {"url" if "://" in raw else "file": raw}
    settings: PolicySettings = build(PolicySettings, raw, "policy")
    for i, name in enumerate(settings.rules):
        if name not in rules:
            error = wrong_value(f"policy.rules[{i}]", name, f"one of {', '.join(rules)}")
            text = f"{error}{did_you_mean(name, rules)}"
            raise ContractError(text, key=error.key, value=name)
    if settings.file is None or settings.file.startswith(SHIPPED):
        return settings
    begin = "" if folder is None else str(folder)
    whole = os.path.abspath(os.path.join(begin, settings.file))  # noqa: PTH100, PTH118 - keeps links
    return dataclasses.replace(settings, file=whole)


def policy_to_plain(settings: PolicySettings | None) -> dict[str, Any] | None:
    """Writes the clause in its plain form: what differs from the defaults."""
    if settings is None:
        return None
    usual = PolicySettings(file="x")
    return {
        each.name: plain(getattr(settings, each.name))
        for each in dataclasses.fields(settings)
        if getattr(settings, each.name) != getattr(usual, each.name)
        and getattr(settings, each.name) is not None
    }


def _is_address(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def _check_url(url: str) -> None:
    if not _is_address(url) or any(not " " < letter < "\x7f" for letter in url):
        raise ValueError(f"url must begin with http:// or https:// and be ASCII, got {url!r:.80}.")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"url must be an address, got {url!r:.80}: {error}.") from error
    if not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"url must name a host and hold no query, got {url!r:.80}.")
    try:
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"url must have a port of 0 to 65535, got {url!r:.80}.") from error
    if parts.username or parts.password:
        raise ValueError(
            "url must hold no user name or password, since it is written down; give a token "
            "in SLA_POLICY_TOKEN."
        )
