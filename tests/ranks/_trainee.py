"""A rank that trains nothing: what the scripts of tests run, without torch.

Imported by those scripts, not by tests::

    from _trainee import join_run, train

    session = join_run()
    train(session, num_steps=100)
    session.leave("finished")
"""

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slav1.contract import Contract
from slav1.decision import Action
from slav1.phase import Phase
from slav1.recorder import layout
from slav1.session import RunSettings, Session, join

PHASES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.BETWEEN)


class FileRendezvous:
    """The ticket travels through a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def publish(self, ticket: bytes) -> None:
        part = self._path.with_suffix(".part")
        part.write_bytes(ticket)
        part.replace(self._path)

    def fetch(self, limit_s: float) -> bytes:
        deadline_s = time.monotonic() + limit_s
        while not self._path.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"Rank 0 has not handed out the ticket within {limit_s:g} s.")
            time.sleep(0.01)
        return self._path.read_bytes()


def contract() -> Contract:
    """Level L1 with what the test changes in it."""
    changes = json.loads(os.environ.get("TEST_CONTRACT", "{}"))
    return Contract.level("L1").override(**changes)


def join_run(*, run_dir: str | None = None, meeting: str = "ticket", **settings: Any) -> Session:
    """Joins as the environment says."""
    rank = int(os.environ["RANK"])
    return join(
        RunSettings(
            contract=contract(),
            run_dir=Path(run_dir or os.environ["TEST_RUN_DIR"]),
            rank=rank,
            local_rank=int(os.environ["LOCAL_RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            node=int(os.environ.get("TEST_NODE", "0")),
            num_nodes=int(os.environ.get("TEST_NUM_NODES", "1")),
            **settings,
        ),
        FileRendezvous(Path.cwd() / meeting),
    )


def train(
    session: Session,
    *,
    num_steps: int,
    step_s: float = 0.02,
    first_step: int = 0,
    loss_at: Callable[[int], float] = lambda step: 1.0,
    before_boundary: Callable[[int], None] = lambda step: None,
) -> int | None:
    """Takes steps until the contract stops them.

    Returns:
        Step at whose end the contract stopped this rank; None if it did not.
    """
    recorder = session.recorder
    for step in range(first_step, first_step + num_steps):
        for phase in PHASES:
            recorder.enter(int(phase))
            time.sleep(step_s / len(PHASES))
        loss = loss_at(step)
        flags = layout.HAS_LOSS | (layout.LOSS_NON_FINITE if math.isnan(loss) else 0)
        recorder.publish(recorder.end_step(step, loss=loss, batch=step, flags=flags))
        before_boundary(step)
        action = session.at_boundary(step)
        if action is Action.STOP:
            session.confirm(step)
            return step
    return None


def train_until(session: Session, name: str) -> int | None:
    """Takes steps until a file of this name lies in the job's folder, or the contract
    stops them; returns as :func:`train` does."""
    step = 0
    while not Path(name).exists():
        stopped = train(session, num_steps=1, first_step=step)
        if stopped is not None:
            return stopped
        step += 1
    return None


def say(*words: object) -> None:
    """Prints one line that the test can wait for."""
    print(*words, flush=True)
