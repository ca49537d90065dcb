"""One run of the demo as it was asked for, and the folder it gets."""

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from slav1.cli._demo_scenario import Scenario, scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run of the demo."""

    scenario: Scenario
    """What is injected, and what must follow."""

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
    if backend != "lightning":
        raise ValueError(f"--backend {backend} must be lightning, the only one so far.")
    plan = RunPlan(
        scenario=scenario(fault, num_ranks=num_ranks, num_steps=num_steps),
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
