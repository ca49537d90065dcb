"""Policies of files and servers, ready to be asked."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slav1.contract import PolicySettings
from slav1.policy.process import PolicyProcess


@pytest.fixture
def open_policy(tmp_path: Path) -> Iterator[Callable[..., PolicyProcess]]:
    """Opens a policy of this text, or as these settings say."""
    opened = []

    def _open(text: str | None = None, **settings: Any) -> PolicyProcess:
        if text is not None:
            path = tmp_path / f"policy-{len(opened)}.rego"
            path.write_text(text)
            settings["file"] = str(path)
        opened.append(PolicyProcess.open(PolicySettings(**settings)))
        return opened[-1]

    yield _open
    for policy in opened:
        policy.close()


class Server:
    """An HTTP server that answers as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.act: Callable[[BaseHTTPRequestHandler], bool] = lambda handler: True
        """Called before an answer; the answer is left out if it returns False."""
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.asked.append((self.path, dict(self.headers), body))
                if not server.act(self):
                    return
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(server.body)))
                self.end_headers()
                self.wfile.write(server.body)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5.0)


@pytest.fixture
def server() -> Iterator[Server]:
    it = Server()
    yield it
    it.close()
