"""The coordinator's end of a policy: asks a process of its own, and never waits for it."""

import contextlib
import hashlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from slav1.contract import PolicySettings
from slav1.policy.answer import Answer
from slav1.policy.error import PolicyError
from slav1.recorder.block import anonymous_file

START_LIMIT_S = 20.0
"""How long a policy may take to be loaded, in seconds; its process has to start first, beside
everything else that does."""

MAX_DEATHS = 3
"""Times in a row that the process may end, or be ended, without an answer between."""

MAX_POLICY_BYTES = 1 << 20
"""Largest policy file."""

MAX_FRAME_BYTES = 1 << 17
"""Longest question or answer between the two processes."""

_SHIPPED = re.compile(r"slav1:([a-z_]+\.rego)")


class PolicyProcess:
    """Asks a policy about breaches. Nothing here waits but :meth:`open` and :meth:`answer_to`.

    An evaluation holds its interpreter's lock as long as it lasts, so it has a process of
    its own, which can be ended. That is done when an answer is not there in time; the next
    question finds a new process.
    """

    def __init__(self, settings: PolicySettings, text: str | None, name: str) -> None:
        """Starts the process; :meth:`open` also waits until it is ready.

        Args:
            settings: The clause of the contract.
            text: Content of the policy file; None for a server.
            name: Path of the file, or address of the server.
        """
        self.settings = settings
        self.name = name
        """Path of the file, or address of the server."""
        self.text = text
        """Content of the file; None for a server."""
        self.query = settings.query or ""
        """Rule that answers, once it is known."""
        self.first_problem: str | None = None
        """Why the first look at a server failed; None if it did not."""
        config = {
            "text": text,
            "name": name,
            "query": settings.query,
            "limit_s": settings.deadline_s,
        }
        self._config = anonymous_file("slav1-policy")
        os.pwrite(self._config, json.dumps(config).encode(), 0)
        # Both ends stay here: the descriptor stays the same whatever happens to the process.
        self._channel, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        self._ended: list[subprocess.Popen[bytes]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._num_deaths = 0
        self._why_not_started = ""
        self._num_waited_for = 0
        self._start()

    @classmethod
    def open(cls, settings: PolicySettings) -> "PolicyProcess":
        """Loads a policy and waits until it can be asked.

        Raises:
            PolicyError: If it can't be read or loaded, or decides about an empty input. A
                server that does not answer is no error.
        """
        text, name = _content_of(settings)
        policy = cls(settings, text, name)
        try:
            policy._await_ready()
        except BaseException:
            policy.close()
            raise
        return policy

    @property
    def digest(self) -> str | None:
        """SHA-256 of the file as hex; None for a server."""
        return None if self.text is None else hashlib.sha256(self.text.encode()).hexdigest()

    def fileno(self) -> int:
        """Descriptor that is readable when there is something to :meth:`answers`."""
        return self._channel.fileno()

    def ask(self, number: int, document: str) -> bool:
        """Asks a question; returns whether an answer may come.

        Args:
            number: Comes back with the answer.
            document: The input document as JSON text.
        """
        self._bury()
        if self._process is None:
            return False
        try:
            self._channel.send(f"{number} {document}".encode())
        except OSError:
            # Full of questions, or this one is too long for it.
            return False
        return True

    def answers(self) -> list[tuple[int, Answer]]:
        """Returns the answers that are there, each with its question's number."""
        found = []
        while (message := self._receive()) is not None:
            if "number" not in message:
                self._is_ready = True
                continue
            self._num_deaths = 0
            answer = Answer(value=message.get("value"), problem=message.get("problem"))
            found.append((int(message["number"]), answer))
        return found

    def has_ended(self) -> bool:
        """Whether the process is gone, so that the question in hand gets no answer."""
        return self._process is None or self._process.poll() is not None

    def give_up(self) -> None:
        """The question in hand has had its time: the next one must not wait behind it."""
        self._bury()
        # One that is still starting will find the next question.
        if self._process is not None and self._is_ready:
            self._process.kill()
            self._ended.append(self._process)
            self._process = None
            self._begin_anew()

    def answer_to(self, document: str) -> Answer:
        """Asks, and waits for the answer until the deadline."""
        asked_at_s = monotonic()
        self._num_waited_for -= 1
        if self.ask(self._num_waited_for, document):
            while (left_s := asked_at_s + self.settings.deadline_s - monotonic()) > 0:
                select.select([self._channel], [], [], min(left_s, 0.05))
                # One that came too late for an earlier question is no answer to this one.
                answer = dict(self.answers()).get(self._num_waited_for)
                if answer is not None:
                    return replace(answer, took_s=monotonic() - asked_at_s)
                if self.has_ended():
                    break
        problem = self.why_silent()
        self.give_up()
        return Answer(problem=problem)

    def why_silent(self) -> str:
        """Says why there is no answer."""
        if self._why_not_started:
            return (
                f"The policy's process can't be started again ({self._why_not_started}) and is not "
                "asked any more."
            )
        if self._process is None:
            return f"The policy has failed {MAX_DEATHS} times in a row and is not asked any more."
        if self._process.poll() is not None:
            return "The policy's process ended before it answered."
        return f"The policy did not answer within {self.settings.deadline_ms} ms."

    def close(self) -> None:
        """Ends the process."""
        processes = [*self._ended, *([self._process] if self._process else [])]
        self._process = None
        for process in processes:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        self._channel.close()
        self._theirs.close()
        os.close(self._config)

    def _start(self) -> None:
        fds = (self._theirs.fileno(), self._config)
        self._is_ready = False
        source = str(Path(__file__).resolve().parents[2])
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable or "", "-m", "slav1.policy", *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "RUST_BACKTRACE": "0"},
            cwd="/",
            pass_fds=fds,
            start_new_session=True,
        )

    def _await_ready(self) -> None:
        deadline_s = monotonic() + START_LIMIT_S
        while monotonic() < deadline_s:
            select.select([self._channel], [], [], 0.05)
            if (message := self._receive()) is not None:
                self._take_in(message)
                return
            assert self._process is not None, "it was started"
            if self._process.poll() is not None:
                break
        raise PolicyError(
            f"policy {self.name}: it could not be loaded and asked about an empty input; "
            f"{self._how_it_ended()}."
        )

    def _how_it_ended(self) -> str:
        status = None if self._process is None else self._process.poll()
        if status is None:
            return f"after {START_LIMIT_S:g} s it was not ready"
        if status == -signal.SIGALRM:
            return "that took too long, as where a rule has no end"
        if status < 0:
            return (
                f"its process ended by signal {-status}, as where rules call themselves without "
                "end or want more than 1 GiB of memory"
            )
        return f"its process ended with status {status}, and what it said stands above"

    def _take_in(self, message: dict[str, Any]) -> None:
        if "error" in message:
            raise PolicyError(f"policy {message['error']}")
        self.query, self.first_problem = message["query"], message["problem"]
        self._is_ready = True

    def _bury(self) -> None:
        """Sees whether processes have ended, and begins anew with one that did by itself."""
        self._ended = [process for process in self._ended if process.poll() is None]
        if self._process is not None and self._process.poll() is not None:
            self._process = None
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._num_deaths += 1
        if self._num_deaths < MAX_DEATHS:
            try:
                self._start()
            except OSError as error:
                # A machine without room for a process: it was the last time.
                self._why_not_started = error.strerror or str(error)

    def _receive(self) -> dict[str, Any] | None:
        try:
            return json.loads(self._channel.recv(MAX_FRAME_BYTES))  # type: ignore[no-any-return]
        except (BlockingIOError, ValueError):
            return None


def _content_of(settings: PolicySettings) -> tuple[str | None, str]:
    """Content of the policy file and its path; no content and the address for a server."""
    if settings.file is None:
        assert settings.url is not None, "the contract has checked that one is given"
        return None, settings.url
    shipped = _SHIPPED.fullmatch(settings.file)
    path = Path(__file__).with_name(shipped[1]) if shipped else Path(settings.file)
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            # Opening a pipe waits for whoever writes to it, which may be nobody.
            raise PolicyError(f"policy {path} is no file but a pipe or a device.")
        with path.open("rb") as file:
            raw = file.read(MAX_POLICY_BYTES + 1)
        if len(raw) > MAX_POLICY_BYTES:
            raise PolicyError(f"policy {path} is larger than {MAX_POLICY_BYTES} bytes.")
        return raw.decode(), settings.file
    except OSError as error:
        raise PolicyError(
            f"policy {settings.file} can't be read: {error.strerror or error}. It is read on rank "
            "0's machine."
        ) from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"policy {settings.file} is no text in UTF-8.") from error
