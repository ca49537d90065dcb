"""The figures of several real ranks: merged, saved, and not counted twice."""

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.usefixtures("fork_server")]

SCRIPT = """
import json, random, sys, warnings
import torch
from torch import distributed as dist
from slav1.metrics import *

warnings.simplefilter("error")
dist.init_process_group("gloo")
rank = dist.get_rank()

def model():
    module = torch.nn.Linear(2, 2)
    module.figures = torch.nn.ModuleDict({
        "beats": Availability(bound="lower"), "saves": CheckpointSuccess(),
        "wait": SyncLatency(), "loss": LossVariance(), "slope": MemorySlope(),
        "useful": UsefulTimeRatio(),
    })
    return module

def feed(module, rank, first, last):
    rng = random.Random(f"{rank} {first}")
    for step in range(first, last):
        module.figures["beats"].update(rng.random() < 0.99)
        module.figures["wait"].update(abs(rng.gauss(0.02, 0.01 * (1 + rank))))
        module.figures["loss"].update(rng.gauss(2.0, 0.1))
        module.figures["slope"].update(1e4 * (1 + rank) + (1 + rank) * 0.5 * step, step)
        module.figures["useful"].update(rng.random(), 1.0)
        if rank == 0:
            module.figures["saves"].update(step % 10 > 0)

def figures(module):
    return {name: metric.compute().item() for name, metric in module.figures.items()}

def alone(first, last):
    # What one process says that has seen all data.
    whole = model()
    for other in range(2):
        part = model()
        feed(part, other, first, last)
        for name, metric in whole.figures.items():
            metric.merge_state(part.figures[name])
            metric.sync_on_compute = metric._to_sync = False
    return whole

here = model()
feed(here, rank, 0, 200)
once = figures(here)
state = here.state_dict()
gather_into(state, here)
again = model()
again.load_state_dict(state)
loaded = figures(again)
feed(again, rank, 200, 300)
later = figures(again)
whole, rest = alone(0, 200), alone(200, 300)
seen = figures(whole)
for name, metric in whole.figures.items():
    metric.merge_state(rest.figures[name])
own = {name: metric.figure() for name, metric in here.figures.items()}
print(json.dumps([once, seen, loaded, later, figures(whole), own]))
dist.destroy_process_group()
"""


def test_ranks_and_checkpoints_add_up(launch: Any) -> None:
    """
    Two ranks get the figures of all data, each alone its own without the other; a gathered
    checkpoint loaded on both goes on as if nobody had left, and counts nothing twice. A rank
    that counts no saves itself takes part.
    """
    ended = launch(SCRIPT, num_ranks=2)
    assert ended.succeeded(), str(ended)
    first, second = (json.loads(ended.out[rank].splitlines()[-1]) for rank in range(2))
    once, seen, loaded, later, whole, own = first

    assert first[:-1] == second[:-1]
    assert once == pytest.approx(seen, rel=1e-12)
    assert loaded == pytest.approx(once, rel=1e-12)
    assert later == pytest.approx(whole, rel=1e-12)
    assert own["slope"] == pytest.approx(0.5)
    assert second[-1]["slope"] == pytest.approx(1.0)
    assert once["slope"] == pytest.approx(0.75)
