"""Telling strangers from nodes by what ZeroMQ says about connections."""

import struct

import zmq
from hypothesis import given
from hypothesis import strategies as st

from slav1.coordinator.refusals import Refusals

ACCEPTED, SUCCEEDED = zmq.EVENT_ACCEPTED, zmq.EVENT_HANDSHAKE_SUCCEEDED
FAILED, GONE = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_DISCONNECTED


def counted(events):
    refusals = Refusals()
    return sum(refusals.add(struct.pack("=HI", event, value)) for event, value in events)


def interleaved(draw, connections):
    """The events of several connections in some order that keeps each one's own."""
    left = [list(events) for events in connections]
    mixed = []
    while any(left):
        index = draw(st.sampled_from([i for i, events in enumerate(left) if events]))
        mixed.append(left[index].pop(0))
    return mixed


@given(st.data(), st.integers(1, 8))
def test_nodes_that_come_and_go_are_never_strangers(data, num_nodes):
    """
    However the handshakes and farewells of many nodes overlap, none is counted.
    """
    nodes = [[(ACCEPTED, fd), (SUCCEEDED, 0), (GONE, fd)] for fd in range(num_nodes)]

    assert counted(interleaved(data.draw, nodes)) == 0


@given(st.integers(0, 5), st.integers(0, 5))
def test_strangers_alone_are_all_counted(num_failed, num_dropped):
    """
    Strangers are counted once each, those whose handshake failed and those who were dropped
    without a word.
    """
    strangers = [[(ACCEPTED, fd), (FAILED, 9), (GONE, fd)] for fd in range(num_failed)]
    strangers += [[(ACCEPTED, 10 + fd), (GONE, 10 + fd)] for fd in range(num_dropped)]
    events = [event for stranger in strangers for event in stranger]

    assert counted(events) == num_failed + num_dropped


def test_stranger_beside_nodes_at_work_is_counted():
    """
    While nodes are connected a stranger that is dropped without a word is counted, and the
    nodes' farewells are not.
    """
    nodes = [(ACCEPTED, 1), (SUCCEEDED, 0), (ACCEPTED, 2), (SUCCEEDED, 0)]
    stranger = [(ACCEPTED, 3), (GONE, 3)]

    assert counted([*nodes, *stranger, *stranger, (GONE, 1), (GONE, 2)]) == 2


def test_a_node_is_not_accused_for_a_caller_that_was_dropped_while_it_came_in():
    """
    Where it can't be told which of two callers came in, the farewell of the one that stays is
    not taken for a stranger's; the next stranger is counted again.
    """
    both = [(ACCEPTED, 1), (ACCEPTED, 2), (SUCCEEDED, 0), (GONE, 2)]

    assert counted([*both, (GONE, 1)]) == 0
    assert counted([*both, (ACCEPTED, 3), (GONE, 3), (GONE, 1)]) == 1
