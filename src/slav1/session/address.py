"""Where the coordinator listens, and by which addresses other nodes may find it."""

import ipaddress
import socket
from collections.abc import Mapping

EVERYWHERE = "0.0.0.0"  # noqa: S104 - CURVE keys keep strangers out
LOOPBACK = "127.0.0.1"

# Any address outside of this host: nothing is sent, it only makes the kernel choose.
_ELSEWHERE = ("192.0.2.1", 9)


def host_to_bind(num_nodes: int, environment: Mapping[str, str]) -> str:
    """Chooses the interface on which the coordinator of the job listens.

    Args:
        num_nodes: Nodes of the job.
        environment: ``MASTER_ADDR`` names rank 0's host as the other nodes know it.

    Returns:
        The loopback address on a single node; the address of ``MASTER_ADDR`` if that is
        one of this host's that other hosts can reach; every interface otherwise.
    """
    if num_nodes == 1:
        return LOOPBACK
    for host in _addresses_of(environment.get("MASTER_ADDR", "")):
        if not ipaddress.ip_address(host).is_loopback and _is_ours(host):
            return host
    return EVERYWHERE


def hosts_to_try(bound: str, environment: Mapping[str, str]) -> list[str]:
    """Lists the names under which rank 0's host may be reached from elsewhere.

    Args:
        bound: What :func:`host_to_bind` returned.
        environment: ``MASTER_ADDR`` of rank 0; the other nodes add their own.

    Returns:
        Addresses and names, best first, each once.
    """
    if bound != EVERYWHERE:
        return [bound]
    master = environment.get("MASTER_ADDR", "")
    found = [_way_out(master), _way_out("")]
    found += [host for host in _addresses_of(socket.gethostname()) if not _is_loopback(host)]
    found += [master]
    return list(dict.fromkeys(host for host in found if host))


def _addresses_of(name: str) -> list[str]:
    """Addresses a name stands for; none if it stands for nothing here."""
    if not name:
        return []
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]).split("%")[0] for entry in found))


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _is_ours(host: str) -> bool:
    """Whether an interface of this host has this address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _way_out(name: str) -> str:
    """This host's own address on the way to another one; empty if there is no way."""
    target = (_addresses_of(name) or [""])[0] or _ELSEWHERE[0]
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, _ELSEWHERE[1]))
            host = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if _is_loopback(host) and not name else host
