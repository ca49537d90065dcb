"""Where the coordinator listens, and by which names it may be found."""

import socket

import pytest

from slav1.session.address import EVERYWHERE, LOOPBACK, host_to_bind, hosts_to_try


def own_address() -> str:
    """An address of this host that others can reach; the test is skipped without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError as error:
            pytest.skip(f"this host has no way out: {error}")
        address = str(probe.getsockname()[0])
    if address.startswith("127."):
        pytest.skip("this host has only a loopback interface")
    return address


@pytest.mark.parametrize("master", ["", "127.0.0.1", "no.such.host.invalid"])
def test_single_node_listens_to_itself_only(master):
    """
    With one node nobody from outside can reach the coordinator, whatever MASTER_ADDR says.
    """
    bound = host_to_bind(1, {"MASTER_ADDR": master})

    assert bound == LOOPBACK
    assert hosts_to_try(bound, {"MASTER_ADDR": master}) == [LOOPBACK]


def test_interface_of_the_master_address_is_preferred():
    """
    With several nodes the coordinator listens on the one interface that the other nodes know
    rank 0's host by, and is found there.
    """
    address = own_address()
    bound = host_to_bind(2, {"MASTER_ADDR": address})

    assert bound == address
    assert hosts_to_try(bound, {"MASTER_ADDR": address}) == [address]


@pytest.mark.parametrize("master", ["", "127.0.0.1", "localhost", "no.such.host", "192.0.2.9"])
def test_every_interface_is_listened_on_if_the_master_address_is_no_help(master):
    """
    With several nodes, and a MASTER_ADDR that is missing, a loopback address, unknown or
    somebody else's, all interfaces are listened on.
    """
    assert host_to_bind(2, {"MASTER_ADDR": master}) == EVERYWHERE


def test_hosts_without_a_name_in_the_domain_name_system_have_an_address():
    """
    An address that other hosts can use is found without looking up this host's own name.
    """
    address = own_address()
    hosts = hosts_to_try(EVERYWHERE, {})

    assert address in hosts
    assert LOOPBACK not in hosts


def test_nodes_of_one_host_find_each_other_by_loopback():
    """
    Where all nodes know rank 0 by the loopback address they are on one host: that address
    comes first.
    """
    hosts = hosts_to_try(EVERYWHERE, {"MASTER_ADDR": "127.0.0.1"})

    assert hosts[0] == LOOPBACK


def test_master_address_that_nobody_knows_comes_last():
    """
    A name that means nothing on rank 0's host may mean something elsewhere: it is tried, last.
    """
    hosts = hosts_to_try(EVERYWHERE, {"MASTER_ADDR": "no.such.host.invalid"})

    assert hosts[-1] == "no.such.host.invalid"
    assert len(hosts) == len(set(hosts))
