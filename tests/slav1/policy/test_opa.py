"""An Open Policy Agent server: what each of its answers, and each way not to answer, means."""

import contextlib
import json
import socket
import threading
import time

import pytest

from slav1.policy.error import PolicyError
from slav1.policy.opa import OpaServer

QUERY = "data.training.autoscale.allow"
# Recorded from the real server (library 1.4.2).
BAD_REQUEST = b'{"code":"invalid_parameter","message":"body contains malformed input document"}'


@pytest.fixture
def opa(server):
    asked = OpaServer(server.url, QUERY, 1.0)
    yield asked
    asked._hang_up()


def test_a_question_is_put_as_the_server_wants_it(server, opa, monkeypatch):
    """
    The rule's path, the document under "input", the token of the environment; the
    connection is kept for the next question.
    """
    monkeypatch.setenv("SLA_POLICY_TOKEN", "t0ken\n")
    server.body = b'{"result":true}'
    asked = OpaServer(f"{server.url}/opa/", QUERY, 1.0)

    assert asked.value('{"metrics": {"a": 1}}') is True
    kept = asked._connection.sock
    assert asked.value("{}") is True
    assert asked._connection.sock is kept
    asked._hang_up()

    path, headers, body = server.asked[0]
    assert path == "/opa/v1/data/training/autoscale/allow"
    assert json.loads(body) == {"input": {"metrics": {"a": 1}}}
    assert headers["Authorization"] == "Bearer t0ken"


def test_a_connection_that_was_idle_for_long_is_not_used_again(server, opa, monkeypatch):
    """
    Between two breaches lie hours, in which a firewall may have forgotten the connection: a
    question after a while gets a new one.
    """
    opa.value("{}")
    kept = opa._connection.sock
    monkeypatch.setattr("slav1.policy.opa.KEEP_S", -1.0)
    opa.value("{}")

    assert opa._connection.sock is not kept


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"result":true}', True),
        (b'{"result":false}', False),
        (b"{}", None),
        (b'{"result":"stop","decision_id":"1"}', "stop"),
        (b'{"result":{"action":"log"}}', {"action": "log"}),
        (b'{"warning":{"code":"api_usage_warning"}}', None),
    ],
)
def test_answers_are_read(server, opa, body, value):
    """
    The result is the value; an answer without one, as for a rule that is not there, is
    undefined.
    """
    server.body = body

    assert opa.value("{}") == value


@pytest.mark.parametrize(
    ("status", "body", "part"),
    [
        (400, BAD_REQUEST, "status 400.*malformed"),
        (401, b"", r"status 401: \(nothing\)"),
        (500, b'{"code":"internal_error"}', "status 500"),
        (307, b"", "status 307"),
        (200, b"\xff\xfe<html>", "no JSON"),
        (200, b"", "no JSON"),
        (200, b"[true]", "no object"),
        (200, b"[" * 5000, "no JSON"),
        (200, b'{"result":"' + b"x" * 100_000 + b'"}', "longer than"),
    ],
)
def test_what_is_no_answer_is_an_error_in_one_line(server, opa, status, body, part):
    """
    Any other status, and any body that is not an answer, is an error that says what came;
    the next question is asked anew.
    """
    server.status, server.body = status, body
    with pytest.raises(PolicyError, match=part) as refused:
        opa.value("{}")
    assert "\n" not in str(refused.value)

    server.status, server.body = 200, b'{"result":true}'
    assert opa.value("{}") is True


def test_a_server_that_is_slow_or_hangs_up_is_an_error(server, opa):
    """
    Silence beyond the limit, and a connection that is dropped, are errors; a connection
    that was closed while it was idle is none.
    """
    server.body = b'{"result":true}'
    assert opa.value("{}") is True
    opa._connection.sock.shutdown(socket.SHUT_RDWR)
    assert opa.value("{}") is True

    go_on = threading.Event()
    server.act = lambda _: go_on.wait(5.0)
    with pytest.raises(PolicyError, match="did not answer: timed out"):
        opa.value("{}")
    go_on.set()

    def drop(handler):
        with contextlib.suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True
        return False

    server.act = drop
    with pytest.raises(PolicyError, match="did not answer"):
        opa.value("{}")


def test_a_server_that_never_comes_to_an_end_has_no_more_time(server, opa):
    """
    A server that sends on and on, always in time, has the limit for all of it; once it
    answers it is heard.
    """
    opa._limit_s = 0.5

    def go_on(handler):
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                time.sleep(0.01)
        handler.close_connection = True
        return False

    server.act = go_on
    begin_s = time.monotonic()
    with pytest.raises(PolicyError, match="did not answer: timed out"):
        opa.value("{}")
    assert time.monotonic() - begin_s < 5.0

    server.act, server.body, opa._limit_s = lambda _: True, b'{"result":true}', 5.0
    assert opa.value("{}") is True


def test_a_name_that_is_looked_up_for_long_has_no_more_time(server, opa, monkeypatch):
    """
    Looking up the server's name counts as well, and while it lasts nobody else is asked.
    """
    opa._limit_s = 0.3
    found, look_up = threading.Event(), socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words: found.wait(20.0) and look_up(*words))
    for problem in ("timed out", "earlier question"):
        with pytest.raises(PolicyError, match=f"did not answer: .*{problem}"):
            opa.value("{}")
    found.set()
    server.body, opa._limit_s = b'{"result":true}', 5.0

    assert opa.value("{}") is True


@pytest.mark.parametrize("token", ["s3\ncret", "s3cr\u00e9t", "s3cret\x07"])
def test_a_token_is_never_written_down(token, monkeypatch):
    """
    A token that can't be sent is refused without showing it; the end of the line that it
    was read from is no part of it.
    """
    monkeypatch.setenv("SLA_POLICY_TOKEN", token)
    with pytest.raises(PolicyError, match="SLA_POLICY_TOKEN") as refused:
        OpaServer("http://127.0.0.1:1", QUERY, 1.0)
    assert "s3" not in str(refused.value)


def test_nobody_there_is_an_error_at_once():
    """
    A refused connection is told at once.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    with pytest.raises(PolicyError, match=r"did not answer: .*refused"):
        OpaServer(f"http://127.0.0.1:{port}", QUERY, 5.0).value("{}")
