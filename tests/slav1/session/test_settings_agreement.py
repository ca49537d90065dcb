"""Settings of all ranks, compared before anything begins."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from slav1.contract import Contract, ContractError
from slav1.session.settings_agreement import Meeting, SettingsDifferError
from slav1.session.settings_source import Resolved


def settings(level: str = "L1", run_dir: str = "runs", **clauses: Any) -> Resolved:
    return Resolved(Contract.level(level).override(**clauses), Path(run_dir))


def outcomes(*found: Resolved | Exception) -> list[Any]:
    """What each rank gets, or is refused with, if it has found this."""
    store = HashStore()

    def hold(rank: int) -> Any:
        def find() -> Resolved:
            mine = found[rank]
            if isinstance(mine, Exception):
                raise mine
            return mine

        meeting = Meeting(store, number=1, rank=rank, world_size=len(found))
        try:
            return meeting.hold(find)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(len(found)) as ranks:
        return list(ranks.map(hold, range(len(found))))


def test_equal_settings_are_taken():
    """
    Ranks that have found the same each go on with their own.
    """
    found = [settings(hang={"limit_s": 20}) for _ in range(3)]

    assert all(one is other for one, other in zip(outcomes(*found), found, strict=True))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            settings(hang={"limit_s": 20}),
            "rules.hang.limit_s is 20.0, and on rank 0 it is 10.0.",
        ),
        (settings("L2"), "level is 'L2', and on rank 0 it is 'L1'."),
        (settings(run_dir="other"), "run_dir is 'other', and on rank 0 it is 'runs'."),
        (settings(mode="observe"), "mode is 'observe', and on rank 0 it is not set."),
        (ContractError("x.yaml: it is bad.", key="level"), "x.yaml: it is bad."),
    ],
)
def test_a_difference_is_refused_on_all_ranks(other, text):
    """
    A rank with another setting, or with none that can be used, is named with the first key
    that differs, in the same words on all ranks.
    """
    errors = outcomes(settings(), other, settings())
    three = outcomes(settings(), other, other)

    assert all(isinstance(error, SettingsDifferError) for error in [*errors, *three])
    assert {str(error).partition("without. ")[2] for error in errors} == {f"Rank 1: {text}"}
    assert {str(error).partition("without. ")[2] for error in three} == {f"Ranks 1, 2: {text}"}
    assert errors[2].by_rank == {1: text}


def test_rank_0_without_settings_keeps_nobody_waiting():
    """
    If it is rank 0 that can't use its settings, the others are told so too.
    """
    errors = outcomes(ContractError("no such file."), settings())

    assert {str(error).partition("without. ")[2] for error in errors} == {"Rank 0: no such file."}


def test_the_same_mistake_everywhere_is_told_as_it_is():
    """
    Where all ranks read the same wrong file each raises its own error, with its key.
    """
    wrong = [ContractError("x.yaml: level is bad.", key="level") for _ in range(2)]

    errors = outcomes(*wrong)

    assert errors == wrong
