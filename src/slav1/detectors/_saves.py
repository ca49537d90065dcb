"""What both forms of the rule about checkpoint writes share."""

from slav1.breach import Breach, Fact, Status
from slav1.sample import Save

RULE = "ckpt_success"


def check_target(target_ratio: float) -> None:
    """Checks the setting that both forms have.

    Raises:
        ValueError: If it is out of range.
    """
    if not 0 < target_ratio < 1:
        raise ValueError(
            f"target_ratio must lie between 0 and 1, got {target_ratio}: 0.997 asks for 997 good "
            "writes in 1000."
        )


def failure_notice(event: Save, num_failed: int, num_saves: int, target_ratio: float) -> Breach:
    """What a single failed save is worth: a line, and no more."""
    return Breach(
        rule=RULE,
        status=Status.NOTICE,
        is_actionable=False,
        rank=None,
        step=event.step,
        statistic=(num_saves - num_failed) / num_saves,
        limit=target_ratio,
        unit="share of saves",
        message=f"The save{_at(event)} failed{_because(event)}: {num_failed} of "
        f"{num_saves} so far.",
        evidence={"num_failed": num_failed, "num_saves": num_saves},
    )


def corrupt_write(event: Save, evidence: dict[str, Fact], target_ratio: float) -> Breach:
    """A write that reads back differently: a fact, and no statistics about it."""
    return Breach(
        rule=RULE,
        rank=None,
        step=event.step,
        statistic=1.0,
        limit=0.0,
        unit="corrupt writes",
        message=f"A checkpoint{_at(event)} reads back differently from what was written"
        f"{_because(event)}. Suspect the disk, its controller or the memory.",
        evidence={"kind": "corrupt", "target_ratio": target_ratio, **evidence},
    )


def recovery(event: Save, message: str) -> Breach:
    """The end of an incident."""
    return Breach(
        rule=RULE,
        status=Status.RECOVERED,
        rank=None,
        step=event.step,
        statistic=None,
        limit=None,
        unit="",
        message=message,
    )


def _at(event: Save) -> str:
    return "" if event.step is None else f" of step {event.step}"


def _because(event: Save) -> str:
    return f" ({event.reason.rstrip('.')})" if event.reason else ""
