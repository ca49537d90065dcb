"""A hand-written loop that writes down which random numbers its ranks and workers draw.

Argument: a JSON list with a set of options for each training; each is as in a new process.
"""

# ruff: noqa: NPY002 - the global generators are what this is about

import json
import random
import warnings
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import set_seed
from draws import RANK, Draws, mask, numbers, train_each
from torch import nn
from torch.utils.data import DataLoader

from sla_accelerate import SLAAccelerator, _runs
from slav1.contract import Contract

warnings.filterwarnings("ignore")

DEFAULTS: dict[str, Any] = {
    "name": "run",
    "how": "set_seed",
    "seeds": {},
    "num_workers": 0,
    "resumes": None,
    "saves": None,
}


def train(options: dict[str, Any]) -> None:
    """Trains two epochs."""
    random.seed(RANK)
    np.random.seed(RANK)
    # As in a new process, where it has more than 32 bits, but the same each time.
    torch.manual_seed((1 << 40) + RANK)
    if options["how"] == "set_seed":
        set_seed(3)
    elif options["how"] == "by_rank":
        set_seed(3 + RANK)
    contract = Contract.level("L1").override(seeds=options["seeds"], monitor={"grace_s": 1.0})
    accelerator = SLAAccelerator(contract=contract, cpu=True)
    model: Any = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5))
    made = model[0].weight.flatten().tolist()[:4]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader: Any = DataLoader(
        Draws(), batch_size=2, shuffle=True, num_workers=options["num_workers"]
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if options["resumes"]:
        accelerator.load_state(options["resumes"])
    drawn = []
    for epoch in accelerator.sla_epochs(2):
        for batch in loader:
            loss = model(numbers(batch)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            drawn.append([epoch, batch.tolist(), mask()])
            if accelerator.sla_last_step == 1 and options["saves"]:
                accelerator.save_state(options["saves"])
    folder = accelerator.sla_run_folder
    # It would end the process group, which the next training goes on with.
    _runs.end(None)
    values = {"drawn": drawn, "made": made, "folder": str(folder)}
    print(json.dumps({"tell": options["name"], **values}), flush=True)
    for state in (AcceleratorState, PartialState, GradientState):
        state._shared_state.clear()


if __name__ == "__main__":
    train_each(train, DEFAULTS)
