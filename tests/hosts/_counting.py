"""A training with an ``SLAAccelerator`` in this process, whose weight counts its steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn

from sla_accelerate import SLAAccelerator, _runs
from slav1.contract import Contract

UNWATCHED = Contract.level("L1").override(monitor={"kind": "off"})
WATCHED = Contract.level("L1").override(monitor={"kind": "thread"})


def start_afresh() -> None:
    """As in a new process."""
    _runs.end(None)
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()


def prepared(accelerator: Accelerator) -> tuple[nn.Linear, Callable[[], None]]:
    """A model whose weight counts its steps, and what makes one step."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))

    def step() -> None:
        accelerator.backward(-model(torch.ones(1, 1)).sum())
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def trained(accelerator: Accelerator, *, num_steps: int, load: Path | None = None) -> nn.Linear:
    """Trains such a model, after loading if asked."""
    model, step = prepared(accelerator)
    if load is not None:
        accelerator.load_state(load)
    for _ in range(num_steps):
        step()
    return model


def with_contract(folder: Path, contract: Contract = UNWATCHED, **settings: Any) -> SLAAccelerator:
    """An accelerator under contract."""
    return SLAAccelerator(contract=contract, run_dir=str(folder / "runs"), cpu=True, **settings)
