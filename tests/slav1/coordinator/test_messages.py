"""Messages between monitors and coordinator keep their content, and garbage is refused."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slav1.breach import Status
from slav1.coordinator import messages
from slav1.phase import Phase
from slav1.sample import Pulse, Sample

from ._books import finding

PULSE = Pulse(
    rank=1,
    time_s=2.0,
    is_alive=True,
    process_state="S",
    step=3,
    phase=Phase.BACKWARD,
    since_progress_s=0.5,
    num_steps=3,
)
FROM_NODE = [
    messages.NodeHello(node=1),
    messages.RankJoined(rank=1),
    messages.RankFacts(rank=1, num_batches=None),
    messages.StateRestored(state={"rule": {"job": [1.0, "x"]}}),
    messages.RankLeft(rank=1, is_lost=True, reason="lost"),
    messages.Report(
        samples=[Sample(rank=1, step=2, time_s=3.0, loss=math.inf, non_finite=("loss",))],
        findings=[messages.pack_breach(finding("hang", 1, evidence={"a": [1, {"b": None}]}))],
    ),
    messages.FirstException(rank=1, step=None, phase=Phase.SETUP, error="no"),
    messages.RankNote(rank=None, step=None, message="x", evidence={"a": 1}),
    messages.Survey(number=1, positions=[messages.Position(pulse=PULSE, change=9, stack=["a"])]),
    messages.Acknowledged(number=1, step=2),
    messages.CarriedOut(number=1, rank=1, step=2, latency_s=0.1),
    messages.StateAsked(rank=1),
    messages.NodeDone(num_seen={"hang": 3}, num_lost=0),
]
FROM_COORDINATOR = [
    messages.Hold(number=1),
    messages.Schedule(number=1, step=2, action=7),
    messages.Release(number=1),
    messages.AskSurvey(number=1),
    messages.End(reason="x", leave_s=1.0),
    messages.StateAnswer(rank=1, state={}),
    messages.Beat(),
    messages.Dismissed(),
]


@pytest.mark.parametrize("message", FROM_NODE, ids=lambda message: type(message).__name__)
def test_what_a_node_says_arrives_as_it_was(message):
    """
    Every message of a node reads back equal, infinite numbers included.
    """
    assert messages.decode_from_node(messages.encode(message)) == message


@pytest.mark.parametrize("message", FROM_COORDINATOR, ids=lambda message: type(message).__name__)
def test_what_the_coordinator_says_arrives_as_it_was(message):
    """
    Every message of the coordinator reads back equal.
    """
    assert messages.decode_from_coordinator(messages.encode(message)) == message


@pytest.mark.parametrize("status", list(Status))
def test_breach_survives_packing(status):
    """
    A breach is the same after it was packed, sent and unpacked.
    """
    breach = finding("hang", 1, status=status, phase=None, statistic=math.inf, arl0=1e6)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(messages.pack_breach(breach)))

    assert messages.unpack_breach(sent) == breach


@given(st.binary(max_size=200))
def test_garbage_is_refused_by_one_kind_of_error(raw):
    """
    Whatever bytes come in, they are a message or raise the one error that is expected.
    """
    for decode in (messages.decode_from_node, messages.decode_from_coordinator):
        try:
            decode(raw)
        except msgspec.MsgspecError:
            continue


@given(
    st.recursive(st.none() | st.booleans(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_well_formed_nonsense_is_refused(plain):
    """
    Well-formed values that are no message of ours are refused.
    """
    with pytest.raises(msgspec.MsgspecError):
        messages.decode_from_node(msgspec.msgpack.encode(plain))
