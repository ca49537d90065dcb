"""Work that all ranks do at once and that counts only if it went well on all of them."""

from collections.abc import Callable, Mapping
from typing import Any

from slav1.checkpoint.peers import Peers


class StageError(Exception):
    """A stage failed on some rank; raised on all ranks.

    Attributes:
        reasons: What went wrong, by rank.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        texts = dict.fromkeys(reasons.values())
        super().__init__(" ".join(_sentence(text) for text in texts))
        self.reasons = dict(reasons)


def together(peers: Peers, topic: str, work: Callable[[], Any], *, limit_s: float) -> list[Any]:
    """Collective. Does this rank's work and returns what came out on every rank.

    A rank that fails says so instead of staying away, so that nobody waits for it.

    Raises:
        StageError: On all ranks, if the work failed on one.
        PeersMissingError: On those that came, if some did not.
    """
    own: Exception | None = None
    mine: dict[str, Any]
    try:
        mine = {"result": work()}
    except Exception as error:  # noqa: BLE001 - whatever a host's writer raises is told to all
        own = error
        mine = {"error": describe(error)}
    answers = peers.gather(topic, mine, limit_s=limit_s)
    reasons = {rank: one["error"] for rank, one in enumerate(answers) if "error" in one}
    if reasons:
        raise StageError(reasons) from own
    return [one["result"] for one in answers]


def describe(error: BaseException) -> str:
    """An error as one line of text."""
    text = " ".join(str(error).split()) or "no text"
    return f"{type(error).__name__}: {text}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
