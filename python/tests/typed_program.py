"""A program that uses the Python API; test_types.py runs it, and checks it with `mypy --strict`."""

import meshtorch
import torch
from meshtorch import DeviceMesh, DTensor, Placement, Replicate, Shard
from meshtorch.debug import CommDebugMode, estimate_memory, memory_of
from meshtorch.experimental import implicit_replication, local_map
from meshtorch.fsdp import MixedPrecisionPolicy, fully_shard, no_sync, replicate
from meshtorch.functional_collectives import all_gather_tensor, all_reduce
from meshtorch.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, loss_parallel, parallelize_module
from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]  # torch's modules return Any


def tensors(mesh: DeviceMesh) -> None:
    x: DTensor = meshtorch.distribute_tensor(torch.arange(12.0).view(4, 3), mesh, [Shard(0)])
    local: Tensor = x.to_local()
    lies: tuple[Placement, ...] = x.placements
    y = torch.mm(x, x.t())
    assert isinstance(y, DTensor)
    whole: Tensor = y.redistribute(placements=[Replicate()]).full_tensor()
    assert local.shape[1] == 3 and lies == (Shard(0),) and whole.shape == (4, 4)
    again = DTensor.from_local(local, mesh, [Shard(0)])
    with implicit_replication():
        assert isinstance(again + torch.ones(3), DTensor)
    assert meshtorch.zeros(4, 2, device_mesh=mesh, dtype=torch.float64).dtype == torch.float64
    total = all_reduce(torch.ones(1), "sum", mesh) + all_gather_tensor(torch.ones(1), 0, (mesh, "tp")).sum()
    assert total.item() == 2 * mesh.size()


def modules(mesh: DeviceMesh) -> None:
    plan: dict[str, ParallelStyle] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model: Mlp = parallelize_module(Mlp(), mesh["tp"], plan)
    with CommDebugMode() as comm:
        model(torch.ones(2, 4))
    assert comm.get_total_counts() == 1
    copy = replicate(Mlp(), mesh=mesh)
    with no_sync(copy):
        copy(torch.ones(2, 4)).sum().backward()
    shards = fully_shard(Mlp(), mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    shards(torch.ones(2, 4)).sum().backward()
    assert memory_of(shards)["rank"] == meshtorch.get_rank()
    assert len(estimate_memory(Mlp(), mesh=mesh)) == mesh.size()
    with loss_parallel():
        pass


@local_map(out_placements=[Shard(0)])
def double(shard: Tensor) -> Tensor:
    return 2 * shard


def main(rank: int) -> None:
    assert (rank, 2) == (meshtorch.get_rank(), meshtorch.get_world_size())
    mesh = meshtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    tensors(mesh)
    modules(mesh)
    double(meshtorch.ones(3, device_mesh=mesh, placements=[Shard(0)]))


if __name__ == "__main__":
    meshtorch.spawn(2, main, timeout=60)
