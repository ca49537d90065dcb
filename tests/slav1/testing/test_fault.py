"""How a fault is described, in code and in ``SLA_INJECT``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slav1.testing import KINDS, WHERE, Fault

steps = st.integers(0, 10**6)
values = {
    "seconds": st.floats(1e-3, 1e3),
    "where": st.sampled_from(WHERE),
    "steps": st.integers(1, 1000),
    "factor": st.floats(1.01, 1e3),
    "mib": st.floats(1e-3, 1e3),
    "what": st.sampled_from(["loss", "gradient", "batch"]),
    "bit": st.integers(0, 63),
    "code": st.integers(0, 255),
    "rank": st.one_of(st.just("all"), st.integers(0, 1000)),
    "attempt": st.integers(0, 9),
}


@st.composite
def faults(draw):
    kind = draw(st.sampled_from(sorted(KINDS)))
    keys = {"rank", "attempt", *KINDS[kind].keys} - {"every"}
    chosen = draw(st.sets(st.sampled_from(sorted(keys))))
    if kind == "sleep":
        chosen |= {"seconds"}
    if kind == "straggler":
        chosen = (chosen - {"factor", "where"}) | {"seconds"}
    drawn = {key: draw(values[key]) for key in chosen}
    if kind == "bitflip" and "what" in drawn:
        drawn["what"] = draw(st.sampled_from(["parameter", "optimizer"]))
    return Fault.of(kind, {"step": draw(steps), **drawn})


@given(fault=faults())
def test_every_fault_reads_back_from_its_own_text(fault):
    """
    What a fault says of itself is what ``SLA_INJECT`` takes for it.
    """
    assert Fault.parse(str(fault)) == fault


def test_the_shortest_form_is_enough():
    """
    A kind, a rank and a step say all: the rank hangs on entering the forward pass.
    """
    fault = Fault.parse("hang:rank=1,step=60")

    assert (fault.kind, fault.rank, fault.step) == ("hang", 1, 60)
    assert (fault.where, fault.seconds) == ("forward", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hnag:step=1", "'hnag' must be one of bitflip, busy, corrupt, exception, exit, hang,"),
        ("", "'' must be one of"),
        ("hang:step=x", "'hang': step=x must be a whole number of at least 0"),
        ("hang:step=-1", "'hang': step=-1 must be a whole number of at least 0"),
        ("hang:step=1.5", "'hang': step=1.5 must be a whole number of at least 0"),
        ("hang", "'hang': step= is missing; it must be a whole number"),
        ("hang:step", "'hang': 'step' must be key=value"),
        ("hang:step=1,step=2", "'step=2' must be key=value, each key at most once"),
        ("hang:step=1,rank=one", "rank=one must be a whole number of at least 0, or all"),
        ("hang:step=1,code=2", "code=2 must be one of the keys rank, step, attempt, where, sec"),
        ("hang:step=1,where=here", "where=here must be one of data, forward, backward, opt"),
        ("hang:step=1,seconds=0", "seconds=0.0 must be a number above 0"),
        ("sleep:step=1,seconds=nan", "seconds=nan must be a number above 0"),
        ("sleep:step=1", "'sleep': seconds= is missing; it must be a number above 0"),
        ("sleep:step=1,seconds=1,every=yes", "every=yes must be true or false"),
        ("sleep:step=1,seconds=1,every=true,steps=2", "every= and steps= must not both"),
        ("sleep:step=1,seconds=1,steps=0", "steps=0 must be a whole number of at least 1"),
        ("sleep:step=1,seconds=1,steps=-1", "steps=-1 must be a whole number of at least 1"),
        ("straggler:step=1", "seconds=None and factor=None must be exactly one number"),
        ("straggler:factor=0.5", "factor=0.5 must be above 1"),
        ("straggler:factor=2,where=backward", "where=backward must go with seconds="),
        ("nan:step=1,what=weights", "what=weights must be one of loss, gradient, batch"),
        ("bitflip:step=1,what=loss", "what=loss must be one of parameter, optimizer"),
        ("bitflip:step=1,bit=x", "bit=x must be a whole number of at least 0"),
        ("exit:step=1,code=256", "code=256 must be a whole number from 0 to 255"),
    ],
)
def test_a_mistake_is_named_in_one_line(text, said):
    """
    The text of the error holds the key, the value and what is allowed, on one line.
    """
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is checked
        Fault.parse(text)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rank", "world_size", "hit"),
    [(None, 1, {0}), (None, 4, {1}), (2, 4, {2}), ("all", 3, {0, 1, 2})],
)
def test_who_is_hit(rank, world_size, hit):
    """
    Without a rank it is rank 1, or the only one there is; "all" is everyone.
    """
    fault = Fault(kind="kill", step=0, rank=rank)

    assert hit == {
        other
        for other in range(world_size)
        if fault.hits(rank=other, world_size=world_size, attempt=0)
    }


def test_a_restart_is_spared():
    """
    A fault acts in the attempt it is meant for, by default the first one only.
    """
    first, third = Fault(kind="kill", step=0), Fault(kind="kill", step=0, attempt=2)

    assert [first.hits(rank=0, world_size=1, attempt=n) for n in range(3)] == [True, False, False]
    assert [third.hits(rank=0, world_size=1, attempt=n) for n in range(3)] == [False, False, True]
