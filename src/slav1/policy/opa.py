"""An Open Policy Agent server, asked over HTTP."""

import contextlib
import json
import os
import queue
import socket
import threading
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from slav1.policy.error import PolicyError

MAX_ANSWER_BYTES = 1 << 16
"""Longest answer that is read."""

KEEP_S = 5.0
"""How long a connection is kept after an answer, in seconds: what lies between may have
forgotten one that was idle for longer, without telling either end."""

TOKEN = "SLA_POLICY_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with a token for the server; sent as ``Authorization: Bearer``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    status: int
    raw: bytes
    is_kept: bool
    """Whether the connection stays open."""


class OpaServer:
    """Asks one rule of a server, on a connection that is kept while it works."""

    def __init__(self, url: str, query: str, limit_s: float) -> None:
        """Asks nothing yet.

        Args:
            url: Address of the server, path before ``/v1`` included.
            query: Rule that answers.
            limit_s: Time for an answer, in seconds.

        Raises:
            PolicyError: If the token can't be sent.
        """
        self._parts = urlsplit(url)
        self._limit_s = limit_s
        self._path = f"{self._parts.path.rstrip('/')}/v1/{query.replace('.', '/')}"
        self._headers = {"Content-Type": "application/json", **_authorization()}
        self._connection = self._new_connection()
        self._asking: threading.Thread | None = None
        self._is_kept = False
        self._answered_s = 0.0

    def value(self, document: str) -> Any:
        """Returns what the rule says about an input document, as JSON text; None if it is
        undefined.

        Raises:
            PolicyError: If the server can't be reached, or gives no answer of its kind.
        """
        if monotonic() - self._answered_s > KEEP_S:
            self._hang_up()
        try:
            reply = self._post_in_time(f'{{"input":{document}}}'.encode())
        except (OSError, HTTPException, ValueError) as error:
            self._hang_up()
            what = str(error) or type(error).__name__
            raise PolicyError(f"The policy server did not answer: {what}.") from error
        self._is_kept, self._answered_s = reply.is_kept, monotonic()
        if reply.status != 200:
            raise PolicyError(
                f"The policy server answered with status {reply.status}: {_text(reply.raw)}"
            )
        return _result(reply.raw)

    def _post_in_time(self, body: bytes) -> _Reply:
        """Posts from a thread: looking a name up knows no limit, and a server that sends a
        byte now and then never reaches that of a single reading."""
        if self._asking is not None:
            self._asking.join(0.1 * self._limit_s)
            if self._asking.is_alive():
                raise TimeoutError("an earlier question still waits for it")
        came: queue.SimpleQueue[_Reply | Exception] = queue.SimpleQueue()
        connection, was_kept = self._connection, self._is_kept

        def ask() -> None:
            try:
                came.put(self._post_twice(connection, body, was_kept=was_kept))
            except Exception as error:  # noqa: BLE001 - raised again below
                came.put(error)
            if connection is not self._connection:
                # Whoever asked has gone on without it.
                connection.close()

        self._asking = threading.Thread(target=ask, daemon=True)
        self._asking.start()
        try:
            reply = came.get(timeout=self._limit_s)
        except queue.Empty:
            raise TimeoutError("timed out") from None
        self._asking.join()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _post_twice(self, connection: HTTPConnection, body: bytes, *, was_kept: bool) -> _Reply:
        try:
            return self._post(connection, body)
        except (ConnectionError, HTTPException):
            if not was_kept:
                raise
        # A server may close a connection that was idle: that is no fault.
        connection.close()
        return self._post(connection, body)

    def _post(self, connection: HTTPConnection, body: bytes) -> _Reply:
        connection.request("POST", self._path, body, self._headers)
        answer = connection.getresponse()
        raw = answer.read(MAX_ANSWER_BYTES + 1)
        if len(raw) > MAX_ANSWER_BYTES:
            raise HTTPException(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
        return _Reply(status=answer.status, raw=raw, is_kept=not answer.will_close)

    def _new_connection(self) -> HTTPConnection:
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        assert self._parts.hostname is not None, "the contract has checked the address"
        return kind(self._parts.hostname, self._parts.port, timeout=self._limit_s)

    def _hang_up(self) -> None:
        self._is_kept = False
        if self._asking is None or not self._asking.is_alive():
            self._connection.close()
            return
        # Whoever still reads from it is woken, and closes it; it is not ours any more.
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection = self._new_connection()


def _authorization() -> dict[str, str]:
    # A file that a variable was filled from ends with a new line.
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise PolicyError(
            f"{TOKEN} holds a letter that can't be sent: it must be printable ASCII in one line."
        )
    return {"Authorization": f"Bearer {token}"}


def _result(raw: bytes) -> Any:
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"The policy server's answer is no JSON: {_text(raw)}") from error
    if not isinstance(answer, dict):
        raise PolicyError(f"The policy server's answer is no object: {_text(raw)}")
    # A rule that is undefined, or is not there at all, is a 200 without a result.
    return answer.get("result")


def _text(raw: bytes) -> str:
    return " ".join(raw[:200].decode(errors="replace").split()) or "(nothing)"
