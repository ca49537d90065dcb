"""An Open Policy Agent server, asked over HTTP."""

import json
import os
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


class OpaServer:
    """Asks one rule of a server, on a connection that is kept while it works."""

    def __init__(self, url: str, query: str, limit_s: float) -> None:
        """Asks nothing yet.

        Args:
            url: Address of the server, path before ``/v1`` included.
            query: Rule that answers.
            limit_s: Time for each reading and writing, in seconds.
        """
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        assert parts.hostname is not None, "the contract has checked the address"
        self._connection = kind(parts.hostname, parts.port, timeout=limit_s)
        self._path = f"{parts.path.rstrip('/')}/v1/{query.replace('.', '/')}"
        self._is_kept = False
        self._answered_s = 0.0
        self._headers = {"Content-Type": "application/json"}
        if token := os.environ.get(TOKEN):
            self._headers["Authorization"] = f"Bearer {token}"

    def value(self, document: str) -> Any:
        """Returns what the rule says about an input document, as JSON text; None if it is
        undefined.

        Raises:
            PolicyError: If the server can't be reached, or gives no answer of its kind.
        """
        body = f'{{"input":{document}}}'.encode()
        try:
            status, raw = self._post_twice(body)
        except (OSError, HTTPException, ValueError) as error:
            self._hang_up()
            what = str(error) or type(error).__name__
            raise PolicyError(f"The policy server did not answer: {what}.") from error
        if status != 200:
            raise PolicyError(f"The policy server answered with status {status}: {_text(raw)}")
        return _result(raw)

    def _post_twice(self, body: bytes) -> tuple[int, bytes]:
        if monotonic() - self._answered_s > KEEP_S:
            self._hang_up()
        was_kept = self._is_kept
        try:
            return self._post(body)
        except (ConnectionError, HTTPException):
            if not was_kept:
                raise
        # A server may close a connection that was idle: that is no fault.
        self._hang_up()
        return self._post(body)

    def _post(self, body: bytes) -> tuple[int, bytes]:
        self._connection.request("POST", self._path, body, self._headers)
        answer = self._connection.getresponse()
        raw = answer.read(MAX_ANSWER_BYTES + 1)
        if len(raw) > MAX_ANSWER_BYTES:
            raise HTTPException(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
        self._is_kept, self._answered_s = not answer.will_close, monotonic()
        return answer.status, raw

    def _hang_up(self) -> None:
        self._is_kept = False
        self._connection.close()


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
