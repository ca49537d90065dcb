"""One run of the demo as it was asked for, and the folder it gets."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slav1.cli._demo_scenario import Scenario, scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A host framework, and the training job that is written for it."""

    title: str
    """Its name for people."""

    module: str
    """The job; run by its name, since nothing here imports a host."""

    starts_ranks: bool
    """Whether the job's first process starts the others."""

    environment: Mapping[str, str]
    """Further variables that it needs."""


BACKENDS = {
    "lightning": Backend(
        title="PyTorch Lightning",
        module="sla_lightning.demo",
        starts_ranks=True,
        environment={},
    ),
    "accelerate": Backend(
        title="Hugging Face Accelerate",
        module="sla_accelerate.demo",
        starts_ranks=False,
        environment={"ACCELERATE_USE_CPU": "true"},
    ),
}
"""Every host framework, the default first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run of the demo."""

    scenario: Scenario
    """What is injected, and what must follow."""

    backend: Backend
    """Host framework that it trains with."""

    num_ranks: int
    """Processes that train."""

    num_steps: int
    """Optimizer steps to make."""

    out: Path
    """Folder of all runs."""

    run_id: str
    """Name of this run, and of its folder."""

    @property
    def folder(self) -> Path:
        """Folder of this run."""
        return self.out / self.run_id

    @property
    def ledger(self) -> Path:
        """File that tells what happened."""
        return self.folder / "ledger.jsonl"

    @property
    def log(self) -> Path:
        """File for what the job prints."""
        return self.folder / "output.log"


def plan_run(*, fault: str, num_ranks: int, backend: str, out: Path, num_steps: int) -> RunPlan:
    """Checks what was asked for and makes the folder of the run.

    Args:
        fault: Name of a fault.
        num_ranks: Processes to train with.
        backend: Name of the host framework.
        out: Folder of all runs; is made.
        num_steps: Optimizer steps to make.

    Raises:
        ValueError: If the options are not possible: in one line which, and what is needed.
        OSError: If the folder can't be made or written to, likewise.
    """
    if backend not in BACKENDS:
        raise ValueError(f"--backend {backend} must be one of {', '.join(BACKENDS)}.")
    plan = RunPlan(
        scenario=scenario(fault, num_ranks=num_ranks, num_steps=num_steps),
        backend=BACKENDS[backend],
        num_ranks=num_ranks,
        num_steps=num_steps,
        out=out.absolute(),
        # Two demos that start in the same second get different names.
        run_id=f"demo-{fault}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
    )
    try:
        plan.folder.mkdir(parents=True)
        plan.log.touch()
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"--out {out} must be a folder that can be written to: {reason}.") from error
    return plan
