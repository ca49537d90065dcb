"""One planned fault: what goes wrong, on which rank, at which step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

WHERE = ("data", "forward", "backward", "optimizer", "step_end")
"""Points of a step, in order. A rank is at a point when it is just entering it."""

WHAT = ("loss", "gradient", "batch")
"""What ``nan`` can hit."""

HELD = ("parameter", "optimizer")
"""What ``bitflip`` can hit."""

EVERY_STEP = -1
"""Number of steps of a fault that never ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What one kind of fault can be told."""

    does: str
    """What it does, for people."""

    keys: tuple[str, ...] = ()
    """Keys it knows besides ``rank``, ``step`` and ``attempt``."""

    defaults: Mapping[str, Any]
    """Fields of :class:`Fault` that differ from the general default."""


def _kind(does: str, *keys: str, **defaults: Any) -> Kind:
    return Kind(does=does, keys=keys, defaults=defaults)


KINDS: Mapping[str, Kind] = {
    "sleep": _kind(
        "sleeps once, for some steps or in every step", "where", "seconds", "steps", "every"
    ),
    "straggler": _kind(
        "is slower in every step",
        *("where", "seconds", "factor", "steps"),
        step=0,
        steps=EVERY_STEP,
    ),
    "hang": _kind("waits in a Python loop of sleeps", "where", "seconds"),
    "hang_gil": _kind("waits in a C call that holds the GIL", "where", "seconds"),
    "busy": _kind("computes in a Python loop", "where", "seconds"),
    "kill": _kind("gets SIGKILL", "where"),
    "stop": _kind("gets SIGSTOP, after seconds= SIGCONT", "where", "seconds"),
    "exit": _kind("leaves through os._exit", "where", "code"),
    "exception": _kind("raises InjectedFaultError", "where"),
    "nan": _kind("NaN in loss, gradient or batch", "what", "steps"),
    "jump": _kind("the loss times factor=", "factor", "steps", factor=10.0),
    "spike": _kind("wrong targets in its batches", "steps", steps=20),
    "leak": _kind(
        "keeps mib= more after every step, on the loss's device",
        *("mib", "steps"),
        steps=EVERY_STEP,
    ),
    "skip_collective": _kind("leaves out the gradient sync", "steps"),
    "uneven": _kind("runs out of data", steps=EVERY_STEP),
    "bitflip": _kind(
        "one bit of a parameter, or of the optimizer's state for it, flips in memory",
        *("what", "bit", "steps"),
        what="parameter",
    ),
    "seed": _kind("starts from weights of another seed", step=0),
    "corrupt": _kind(
        "one bit of the next checkpoint flips on its way to the disk", "steps", rank=0
    ),
}
"""Every kind of fault, by name."""

COMMON_KEYS = ("rank", "step", "attempt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, on which rank, at which step.

    Raises:
        ValueError: If a field is out of range or makes no sense for the kind.
    """

    kind: str
    """One of :data:`KINDS`."""

    step: int
    """First optimizer step that is hit, from 0."""

    rank: int | Literal["all"] | None = None
    """Global rank that is hit. None: rank 1, or rank 0 in a world of one, because a
    fault on rank 0 often takes the launcher with it."""

    attempt: int = 0
    """Attempt of the job that is hit, from 0, so that a restart is spared."""

    steps: int = 1
    """Number of steps that are hit; :data:`EVERY_STEP` for all from ``step`` on. A step
    that is repeated after a rollback counts again, so what was bad data is not bad for
    ever. ``corrupt``: number of checkpoints, from the first one that holds ``step``."""

    where: str = "forward"
    """Point of the step at which a rank is slowed, stopped or ended."""

    seconds: float | None = None
    """How long it lasts, in seconds; None for ever (``straggler``: see ``factor``)."""

    factor: float | None = None
    """``straggler``: how many times longer the part at ``where`` takes. Its base is the
    median of this rank's own last 20 times for that part, without what was injected,
    so the first step that is hit only measures. ``jump``: what the loss is multiplied
    with."""

    mib: float = 1.0
    """What ``leak`` keeps of every step, in MiB, above 0."""

    what: str = "loss"
    """What ``nan`` hits: the loss, the gradients after their sync, or the batch; and
    ``bitflip``: a ``parameter``, or what the ``optimizer`` keeps for one. It is the first
    element of the first one, right before the update."""

    bit: int = 20
    """Which bit of it flips, from 0 for the lowest; counted anew past its highest."""

    code: int = 1
    """Exit code of ``exit``."""

    def __post_init__(self) -> None:
        for name, (is_right, needed) in _NEEDED.items():
            value = getattr(self, name)
            if not is_right(value):
                raise ValueError(f"Fault {self.kind!r}: {name}={value} must be {needed}.")
        if self.kind == "sleep" and self.seconds is None:
            raise ValueError("Fault 'sleep': seconds= is missing; it must be a number above 0.")
        allowed = HELD if self.kind == "bitflip" else WHAT
        if self.what not in allowed:
            raise ValueError(
                f"Fault {self.kind!r}: what={self.what} must be one of {', '.join(allowed)}."
            )
        if self.kind == "straggler":
            self._check_straggler()

    def _check_straggler(self) -> None:
        if (self.seconds is None) == (self.factor is None):
            raise ValueError(
                f"Fault 'straggler': seconds={self.seconds} and factor={self.factor} "
                "must be exactly one number."
            )
        if self.factor is None:
            return
        if self.factor <= 1:
            raise ValueError(f"Fault 'straggler': factor={self.factor} must be above 1.")
        if self.where == "backward":
            raise ValueError(
                "Fault 'straggler': where=backward must go with seconds=, not factor=: its "
                "time holds the wait for other ranks and says nothing about this one's work."
            )

    @classmethod
    def of(cls, kind: str, values: Mapping[str, object]) -> Fault:
        """Builds a fault from names and values, as text or as what they are.

        Args:
            kind: One of :data:`KINDS`.
            values: Value by key, as in ``SLA_INJECT``.

        Raises:
            ValueError: In one line: which key, which value, what is allowed.
        """
        if kind not in KINDS:
            raise ValueError(f"Fault {kind!r} must be one of {', '.join(sorted(KINDS))}.")
        allowed = (*COMMON_KEYS, *KINDS[kind].keys)
        settings = dict(KINDS[kind].defaults)
        for key, value in values.items():
            if key not in allowed:
                raise ValueError(
                    f"Fault {kind!r}: {key}={value} must be one of the keys {', '.join(allowed)}."
                )
            settings.update(_read(kind, key, value))
        if "every" in values and "steps" in values:
            raise ValueError(f"Fault {kind!r}: every= and steps= must not both be given.")
        if "step" not in settings:
            raise ValueError(f"Fault {kind!r}: step= is missing; it must be {_NEEDED['step'][1]}.")
        return cls(kind=kind, **settings)

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Reads one fault as it stands in ``SLA_INJECT``.

        Args:
            text: ``kind:key=value,key=value``.

        Raises:
            ValueError: In one line: which key, which value, what is allowed.

        Example:
            >>> fault = Fault.parse("hang:rank=1,step=60")
            >>> fault.kind, fault.rank, fault.step, fault.where
            ('hang', 1, 60, 'forward')
        """
        kind, _, rest = text.strip().partition(":")
        values: dict[str, object] = {}
        for part in filter(None, (part.strip() for part in rest.split(","))):
            key, equals, value = (word.strip() for word in part.partition("="))
            if not equals or key in values:
                raise ValueError(
                    f"Fault {kind!r}: {part!r} must be key=value, each key at most once."
                )
            values[key] = value
        return cls.of(kind.strip(), values)

    def __str__(self) -> str:
        """The fault as it stands in ``SLA_INJECT``; :meth:`parse` reads it back."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        keys = (*COMMON_KEYS, *KINDS[self.kind].keys)
        shown = {key: values[key] for key in keys if values.get(key) is not None}
        if shown.get("steps") == EVERY_STEP:
            del shown["steps"]
            shown |= {"every": "true"} if "every" in keys else {}
        return f"{self.kind}:" + ",".join(f"{key}={value}" for key, value in shown.items())

    def hits(self, *, rank: int, world_size: int, attempt: int) -> bool:
        """Whether this fault is meant for a rank in an attempt."""
        target = min(1, world_size - 1) if self.rank is None else self.rank
        return target in ("all", rank) and self.attempt == attempt

    def covers(self, step: int) -> bool:
        """Whether a step is among those that are hit."""
        return step >= self.step and (self.steps == EVERY_STEP or step < self.step + self.steps)


def _is_whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and value >= least


def _is_positive_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and 0 < value < math.inf)


_NEEDED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (KINDS.__contains__, f"one of {', '.join(sorted(KINDS))}"),
    "rank": (
        lambda rank: rank in (None, "all") or _is_whole(0)(rank),
        "a whole number of at least 0, or all",
    ),
    "step": (_is_whole(0), "a whole number of at least 0"),
    "attempt": (_is_whole(0), "a whole number of at least 0"),
    "steps": (
        lambda steps: steps == EVERY_STEP or _is_whole(1)(steps),
        "a whole number of at least 1",
    ),
    "where": (WHERE.__contains__, f"one of {', '.join(WHERE)}"),
    "seconds": (_is_positive_or_none, "a number above 0"),
    "factor": (_is_positive_or_none, "a number above 0"),
    "mib": (lambda mib: mib is not None and _is_positive_or_none(mib), "a number above 0"),
    "bit": (_is_whole(0), "a whole number of at least 0"),
    "code": (lambda code: _is_whole(0)(code) and code <= 255, "a whole number from 0 to 255"),
}
"""For each field: whether a value is right, and what is needed, in words."""

_FLAGS = {"true": True, "false": False, "1": True, "0": False}


def _read(kind: str, key: str, value: object) -> dict[str, Any]:
    """Turns one key and its value into fields of a fault."""
    text = str(value).strip()
    if key == "every":
        if text.lower() not in _FLAGS:
            raise ValueError(f"Fault {kind!r}: every={text} must be true or false.")
        return {"steps": EVERY_STEP} if _FLAGS[text.lower()] else {}
    if key in ("where", "what") or (key == "rank" and text == "all"):
        return {key: text}
    number = _number(text, float if key in ("seconds", "factor", "mib") else int)
    if number is None or number == EVERY_STEP:
        raise ValueError(f"Fault {kind!r}: {key}={text} must be {_NEEDED[key][1]}.")
    return {key: number}


def _number(text: str, read: Callable[[str], float]) -> float | None:
    try:
        return read(text)
    except ValueError:
        return None
