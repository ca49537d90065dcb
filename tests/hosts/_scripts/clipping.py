"""Clipping of gradients that are spread over two ranks: the host's way and ours, side by side."""

import copy

import torch
import torch.distributed as dist
import toys
from collectives import num_collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

from sla_accelerate._gradients import are_parts_of_one_mesh, clip_parts


def main() -> None:
    """Clips one model both ways, to a norm below its own and to one above it."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3))
    other = copy.deepcopy(model)
    for one in (model, other):
        fully_shard(one, mesh=mesh)
        one(torch.arange(7.0)[None] + dist.get_rank()).square().sum().backward()
    told = []
    for limit in (1e9, 1.0, 0.3):
        before = num_collectives()
        theirs = clip_grad_norm_(other.parameters(), limit)
        between = num_collectives()
        ours = clip_parts(list(model.parameters()), limit)
        after = num_collectives()
        pairs = zip(model.parameters(), other.parameters(), strict=True)
        told.append(
            {
                "collectives": (between - before, after - between),
                "norms": (theirs.full_tensor().item(), ours.to_local().item(), ours.item()),
                "same": all(torch.equal(a.grad.to_local(), b.grad.to_local()) for a, b in pairs),
            }
        )
    plain = torch.nn.Linear(2, 2)
    plain(torch.ones(2)).sum().backward()
    are_parts = [
        are_parts_of_one_mesh(list(one.parameters()))
        for one in (model, plain, torch.nn.ModuleList([model, plain]), torch.nn.Linear(1, 1))
    ]
    toys.tell("clipped", times=told, are_parts=are_parts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
