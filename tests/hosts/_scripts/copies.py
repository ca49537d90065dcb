"""What is found to be held by more than one of four ranks, by how a model is wrapped."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import toys
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from slav1.replicas import find_copies

warnings.filterwarnings("ignore")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def ddp() -> nn.Module:
    return DistributedDataParallel(network())


def ddp_but_one() -> nn.Module:
    module = network()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["2.bias"])
    return DistributedDataParallel(module)


def fsdp(strategy: ShardingStrategy) -> Callable[[], nn.Module]:
    def wrap() -> nn.Module:
        mesh = None
        if strategy is ShardingStrategy.HYBRID_SHARD:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        return FullyShardedDataParallel(
            network(),
            device_mesh=mesh,
            sharding_strategy=strategy,
            use_orig_params=True,
            device_id=torch.device("cpu"),
        )

    return wrap


def fsdp2(*shape: int) -> Callable[[], nn.Module]:
    def wrap() -> nn.Module:
        module = network()
        names = ("copies", "shards")[-len(shape) :]
        fully_shard(module, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
        return module

    return wrap


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": network,
    "ddp": ddp,
    "ddp but one": ddp_but_one,
    "fsdp": fsdp(ShardingStrategy.FULL_SHARD),
    "fsdp unsharded": fsdp(ShardingStrategy.NO_SHARD),
    "hsdp": fsdp(ShardingStrategy.HYBRID_SHARD),
    "fsdp2": fsdp2(4),
    "hsdp2": fsdp2(2, 2),
}


def found(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    known = find_copies([model], [optimizer])
    return {
        "parameters": sorted(one.name for one in known.copies if one.kind == "parameter"),
        "kinds": sorted({one.kind for one in known.copies}),
        "ranks": sorted({one.ranks for one in known.copies}),
        "num_elements": sum(one.tensor.numel() for one in known.copies if one.kind == "parameter"),
        "is_certain": known.is_certain,
        "left_out": known.left_out,
    }


def main() -> None:
    dist.init_process_group("gloo")
    for name, make in MODELS.items():
        model = make()
        toys.tell(name, **found(model, torch.optim.AdamW(model.parameters(), lr=1e-3)))
    model = ddp()
    toys.tell("zero", **found(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)))
    hooked: Any = ddp()
    hooked.register_comm_hook(None, lambda _, bucket: bucket_as_is(bucket))
    toys.tell("hook", **found(hooked, torch.optim.SGD(hooked.parameters(), lr=1e-3)))
    dist.destroy_process_group()


def bucket_as_is(bucket: Any) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


if __name__ == "__main__":
    main()
