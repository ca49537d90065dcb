"""All ranks have the same settings, or none of them begins."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import msgspec

from slav1.named_ranks import named
from slav1.session.settings_source import Resolved, as_plain

LIMIT_S = 1800.0
"""How long ranks may come one after another, in seconds."""

READ_LIMIT_S = 10.0
"""How long rank 0, which may hold the store, waits for the others to read why none begins, in
seconds."""

MAX_NAMED = 8
"""Ranks with a text of their own that an error spells out."""

_numbers = count(1)


class SettingsDifferError(ValueError):
    """The ranks of a job can't begin with the settings that they have found.

    Attributes:
        by_rank: What is wrong, by rank.
    """

    def __init__(self, by_rank: Mapping[int, str]) -> None:
        alike: dict[str, list[int]] = {}
        for rank, text in sorted(by_rank.items()):
            alike.setdefault(text, []).append(rank)
        parts = [f"{named(ranks).capitalize()}: {text}" for text, ranks in alike.items()]
        more = f" And {len(parts) - MAX_NAMED} more." if len(parts) > MAX_NAMED else ""
        super().__init__(
            "All ranks need the same settings, and no step is made without. "
            f"{' '.join(parts[:MAX_NAMED])}{more}"
        )
        self.by_rank = dict(by_rank)


def agree(store: Any, find: Callable[[], Resolved], *, rank: int, world_size: int) -> Resolved:
    """Collective where there is a store. Finds this rank's settings, which are those of all.

    Args:
        store: That of the process group; None if there is no group.
        find: As for :meth:`Meeting.hold`.
        rank: Global rank.
        world_size: Ranks of the job.

    Returns:
        This rank's settings.

    Raises:
        ValueError: As :meth:`Meeting.hold` does.
    """
    if store is None or world_size == 1:
        return find()
    # All ranks meet equally often: they find their settings together or not at all.
    meeting = Meeting(store, number=next(_numbers), rank=rank, world_size=world_size)
    return meeting.hold(find)


class Meeting:
    """One exchange of settings through the store of the process group."""

    def __init__(self, store: Any, *, number: int, rank: int, world_size: int) -> None:
        """Says nothing yet.

        Args:
            store: A ``torch.distributed.Store``.
            number: Counts the meetings in this store, on all ranks alike.
            rank: Global rank.
            world_size: Ranks of the job.
        """
        self._prefix = f"slav1/settings/{number}"
        self._store = store
        self._rank = rank
        self._world_size = world_size

    def hold(self, find: Callable[[], Resolved]) -> Resolved:
        """Collective. Lets every rank find its settings, and compares them with rank 0's.

        Args:
            find: Finds this rank's settings, or raises ValueError; that must not keep the
                other ranks waiting.

        Returns:
            This rank's settings.

        Raises:
            ValueError: That of ``find``, if all ranks have the same.
            SettingsDifferError: On all ranks alike, if settings differ or some rank can't
                use its own.
        """
        mine, error = _try(find)
        wrong = self._wrong_ranks(mine, error)
        if not wrong:
            assert mine is not None, "a rank without settings is among the wrong ones"
            return mine
        if error is not None and len(wrong) == self._world_size and len(set(wrong.values())) == 1:
            raise error
        raise SettingsDifferError(wrong) from error

    def _wrong_ranks(self, mine: Resolved | None, error: ValueError | None) -> dict[int, str]:
        settings = None if mine is None else as_plain(mine)
        if self._rank == 0:
            self._speak_first(settings, error)
        else:
            self._answer(settings, error)
        wrong: dict[int, str] = self._hear("verdict")
        if wrong and self._rank != 0:
            self._say(f"read/{self._rank}", value=True)
        elif wrong:
            # The store may end with this process, before others have read the verdict.
            with suppress(TimeoutError):
                self._await([f"read/{rank}" for rank in range(1, self._world_size)], READ_LIMIT_S)
        return wrong

    def _speak_first(self, settings: Any, error: ValueError | None) -> None:
        self._say("first", settings)
        others = range(1, self._world_size)
        self._await([f"answer/{rank}" for rank in others])
        answers = {0: str(error or "")} | {r: self._hear(f"answer/{r}") for r in others}
        self._say("verdict", {rank: text for rank, text in answers.items() if text})

    def _answer(self, settings: Any, error: ValueError | None) -> None:
        self._await(["first"])
        first = self._hear("first")
        self._say(f"answer/{self._rank}", str(error or "") or _difference(settings, first))
        self._await(["verdict"])

    def _say(self, key: str, value: Any) -> None:
        self._store.set(f"{self._prefix}/{key}", msgspec.json.encode(value).decode())

    def _hear(self, key: str) -> Any:
        raw = self._store.get(f"{self._prefix}/{key}")
        kind: Any = dict[int, str] if key == "verdict" else Any
        return msgspec.json.decode(raw, type=kind)

    def _await(self, keys: list[str], limit_s: float = LIMIT_S) -> None:
        names = [f"{self._prefix}/{key}" for key in keys]
        try:
            self._store.wait(names, timedelta(seconds=limit_s))
        except RuntimeError as error:
            raise TimeoutError(
                f"Rank {self._rank} has waited {limit_s:g} s for the other ranks to say what "
                "settings they have found: some may have ended. Look at their output."
            ) from error


def _try(find: Callable[[], Resolved]) -> tuple[Resolved | None, ValueError | None]:
    try:
        return find(), None
    except ValueError as error:
        return None, error


def _difference(mine: Any, first: Any) -> str:
    """Names the first setting in which this rank differs from rank 0; empty if in none."""
    # Through the same form as what came, since JSON knows no tuples.
    mine = msgspec.json.decode(msgspec.json.encode(mine))
    if first is None or mine == first:
        return ""
    key = _first_key(mine, first)
    return f"{key} is {_at(mine, key)}, and on rank 0 it is {_at(first, key)}."


def _first_key(mine: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    # In the order of a contract, of which the longer one has more.
    for key in [*max(mine, first, key=len), *mine, *first]:
        here, there = mine.get(key), first.get(key)
        if here == there:
            continue
        if isinstance(here, dict) and isinstance(there, dict):
            return f"{key}.{_first_key(here, there)}"
        return key
    raise AssertionError("mappings that differ differ in a key")


def _at(settings: Any, key: str) -> str:
    for part in key.split("."):
        settings = settings.get(part)
    return "not set" if settings is None else f"{settings!r:.100}"
