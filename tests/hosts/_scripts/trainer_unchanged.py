"""A script with two trainers: one has a callback of its own, the other knows of none."""

import sys
from pathlib import Path

from trainers import Seeing, Words, model, settings

from sla_accelerate import SLATrainerCallback
from slav1.contract import Contract

OUT = Path(sys.argv[1])
OBSERVED = Contract.level("L1").override(monitor={"kind": "off"})

own = Seeing(
    model(),
    settings(OUT / "own", max_steps=4),
    train_dataset=Words(),
    callbacks=[SLATrainerCallback(OBSERVED)],
)
own.train()
print("own", own.state.global_step, flush=True)
how = {"gradient_accumulation_steps": 2, "max_steps": 400}
other = Seeing(model(), settings(OUT / "other", **how), train_dataset=Words())
other.train()
