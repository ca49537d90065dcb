"""The monitor's end of the scheduled decision, for the ranks of one node."""

import time
from collections.abc import Callable, Collection

from slav1.decision import Action
from slav1.recorder.command import Words
from slav1.recorder.layout import Word

SETTLE_S = 0.5e-3
"""Pause between setting the hold and reading the steps, in seconds. Within half of it
every store made by any core of the node is seen by all others."""


def hold(
    words_of_ranks: Collection[Words],
    number: int,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Makes every rank of the node wait at its next boundary, and lets that settle.

    A rank that does not see the hold at its boundary has published the step it
    enters by the time this returns.

    Args:
        words_of_ranks: Words of all the node's ranks, of those that are done too:
            the step they published counts.
        number: Number of the decision being made; above all before it.
        sleep: Pauses for so many seconds.
    """
    for words in words_of_ranks:
        words[Word.HOLD] = number
    sleep(SETTLE_S)


def acknowledged_step(words_of_ranks: Collection[Words]) -> int:
    """The first step at whose end all ranks of the node can act.

    Args:
        words_of_ranks: What :func:`hold` was called with.

    Returns:
        The largest step any of them published.
    """
    return max(words[Word.STEP] for words in words_of_ranks)


def explain(
    words_of_ranks: Collection[Words], onset_step: int | None, alarm_step: int | None
) -> None:
    """Says which steps a decision is about; before :func:`publish`.

    Args:
        words_of_ranks: What :func:`hold` was called with.
        onset_step: First bad step; None if the decision has none.
        alarm_step: Step at which that was found; None if the decision has none.
    """
    for words in words_of_ranks:
        words[Word.ONSET_STEP] = -1 if onset_step is None else onset_step
        words[Word.ALARM_STEP] = -1 if alarm_step is None else alarm_step


def publish(words_of_ranks: Collection[Words], number: int, step: int, action: Action) -> None:
    """Tells the ranks of the node what to do and when.

    Args:
        words_of_ranks: What :func:`hold` was called with.
        number: Number of the decision that :func:`hold` announced.
        step: Step at whose end every rank of the job acts.
        action: What it does then.
    """
    for words in words_of_ranks:
        words[Word.SCHEDULE_STEP] = step
        words[Word.ACTION] = action
        # Last: a rank that sees this number sees the two words above as well.
        words[Word.SCHEDULED] = number


def release(words_of_ranks: Collection[Words], number: int) -> None:
    """Lets the ranks of the node go on: the decision is carried out, or withdrawn.

    A decision that :func:`publish` told to any rank must not be withdrawn, since
    that rank may have acted already.

    Args:
        words_of_ranks: What :func:`hold` was called with.
        number: Number of the decision; a later one that is being made stays.
    """
    for words in words_of_ranks:
        if words[Word.HOLD] == number:
            words[Word.HOLD] = 0


def has_carried_out(words: Words, number: int) -> bool:
    """Whether a rank confirmed that it carried out decision ``number``."""
    return words[Word.CARRIED_OUT] == number
