"""Writing detector memories down and reading them back."""

import json
from typing import NamedTuple

import pytest

from slav1.state import from_plain, to_plain


class Inner(NamedTuple):
    name: str = ""
    score: float = 0.0


class Outer(NamedTuple):
    count: int = 0
    is_open: bool = False
    inner: Inner = Inner()
    many: tuple[Inner, ...] = (Inner(),)
    pair: tuple[Inner, ...] = (Inner(), Inner())
    loose: tuple[tuple[int, int], ...] = ()


FULL = Outer(
    count=3,
    is_open=True,
    inner=Inner("a", 0.5),
    many=(Inner("b"), Inner("c"), Inner("d")),
    pair=(Inner("e", float("inf")), Inner("f")),
    loose=((1, 2), (3, 4)),
)


def test_comes_back_as_it_was():
    """
    Nested memories survive the way through plain values and JSON, types included.
    """
    plain = json.loads(json.dumps(to_plain(FULL)))

    assert from_plain(Outer(), plain) == FULL
    assert repr(from_plain(Outer(), plain)) == repr(FULL)


def test_plain_means_plain():
    """
    Only dicts, lists, text, numbers and truth values are left.
    """
    assert to_plain(Outer(loose=((1, 2),))) == {
        "count": 0,
        "is_open": False,
        "inner": {"name": "", "score": 0.0},
        "many": [{"name": "", "score": 0.0}],
        "pair": [{"name": "", "score": 0.0}] * 2,
        "loose": [[1, 2]],
    }


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"count": "three"}, "must be or have a number; got 'three'"),
        ({"count": None}, "must be or have a number; got None"),
        ({"inner": {"name": "a"}}, "A saved Inner must be or have the fields name, score"),
        ({"inner": {"name": 1, "score": 1}}, "must be or have text; got 1"),
        ({"inner": [1, 2]}, "A saved Inner must be or have the fields name, score"),
        ({"many": 5}, "must be or have a list; got 5"),
        ({"pair": []}, "must be or have 2 parts"),
        ({"extra": 1}, "A saved Outer must be or have the fields count"),
    ],
)
def test_refuses_another_shape(change, problem):
    """
    A memory of another version is refused with what is needed and what came.
    """
    with pytest.raises(ValueError, match=problem):
        from_plain(Outer(), to_plain(FULL) | change)
