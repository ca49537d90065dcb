"""``python -m slav1.policy CHANNEL CONFIG``: evaluates one policy, in a process of its own."""

import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Protocol

from slav1.policy.answer import Answer, grants
from slav1.policy.error import PolicyError
from slav1.policy.opa import OpaServer
from slav1.policy.process import MAX_FRAME_BYTES
from slav1.policy.rego import DECISION, RegoPolicy

LOAD_LIMIT_S = 8.0
"""Time for loading a policy and looking at an empty input, in seconds."""

_MAX_ANSWER_BYTES = 50_000
_MAX_CONFIG_BYTES = 1 << 24
# A policy that takes memory without end is to end this process, not the node's others.
_MORE_MEMORY_BYTES = 1 << 30


class _Policy(Protocol):
    def value(self, document: str) -> Any: ...


def main() -> int:
    """Loads, looks whether it may be used, and answers until nobody asks any more."""
    # The job's end is ours to see through: whoever started us closes the channel.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Not caught, so that it ends this process also while it is deep inside of an evaluation.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    _limit_memory()
    channel = socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(os.pread(int(sys.argv[2]), _MAX_CONFIG_BYTES, 0))
    signal.setitimer(signal.ITIMER_REAL, LOAD_LIMIT_S)
    try:
        policy, ready = _load(config)
    except PolicyError as error:
        channel.send(json.dumps({"error": str(error)}).encode())
        return 1
    channel.send(json.dumps(ready).encode())
    signal.setitimer(signal.ITIMER_REAL, 0)
    _answer_all(channel, policy, config["limit_s"])
    return 0


def _limit_memory() -> None:
    """Allows this process so much more than whatever its start has loaded."""
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = num_pages * resource.getpagesize() + _MORE_MEMORY_BYTES
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _load(config: dict[str, Any]) -> tuple[_Policy, dict[str, Any]]:
    """The policy, and what is said about it first."""
    if config["text"] is None:
        query = config["query"] or DECISION
        # Room for its answer to arrive before the deadline.
        server = OpaServer(config["name"], query, 0.8 * config["limit_s"])
        return server, {"query": query, "problem": _problem_of(server, config["name"], query)}
    policy = RegoPolicy(config["text"], config["name"], config["query"])
    if (problem := _problem_of(policy, config["name"], policy.query)) is not None:
        raise PolicyError(f"{config['name']}: {problem}")
    return policy, {"query": policy.query, "problem": None}


def _problem_of(policy: _Policy, name: str, query: str) -> str | None:
    """Why an empty input could not be judged; refuses a policy that decides about nothing."""
    try:
        value = policy.value("{}")
    except PolicyError as error:
        return str(error)
    if grants(Answer(value=value)):
        raise PolicyError(
            f"{name}: {query} says {json.dumps(value)[:80]} to an empty input, so it would decide "
            "whatever the facts are. Leave such a default out: what is undefined, false or "
            '"table" is left to the contract\'s table.'
        )
    return None


def _answer_all(channel: socket.socket, policy: _Policy, limit_s: float) -> None:
    while frame := channel.recv(MAX_FRAME_BYTES):
        number, _, document = frame.decode().partition(" ")
        # Only if nobody ends us before: whoever asked may be gone.
        signal.setitimer(signal.ITIMER_REAL, limit_s + 1.0)
        channel.send(_answer(int(number), policy, document))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(number: int, policy: _Policy, document: str) -> bytes:
    try:
        answer = {"number": number, "value": policy.value(document)}
    except PolicyError as error:
        answer = {"number": number, "problem": str(error)}
    raw = json.dumps(answer).encode()
    if len(raw) > _MAX_ANSWER_BYTES:
        raw = json.dumps({"number": number, "problem": "Its answer is too long."}).encode()
    return raw


if __name__ == "__main__":
    sys.exit(main())
