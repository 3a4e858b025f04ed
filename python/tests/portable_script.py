"""A program written for torch.distributed.tensor. test_portable.py runs it as it is, and with its imports changed."""

import torch
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    full,
    ones,
    zeros,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication, local_map
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

c10d_functional = torch.ops.c10d_functional


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.out = nn.Linear(8, 12, bias=False)

    def forward(self, x):
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.out(x)


def make_block():
    torch.manual_seed(5)
    return Block().double()


def train(mesh):
    block = make_block()
    plan = {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "out": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(block, mesh, plan)
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.02)
    torch.manual_seed(9)
    x, target = torch.randn(2, 8, 8).double(), torch.randint(12, (2, 8))
    losses, counts = [], []
    for _ in range(3):
        optimizer.zero_grad()
        with CommDebugMode() as comm, loss_parallel():
            logits = block(x)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
            counts.append(comm.get_comm_counts()[c10d_functional.all_gather_into_tensor])
            loss.backward()
        optimizer.step()
        losses.append(loss.full_tensor().item())
    weights = [p.full_tensor().sum().item() for p in block.parameters()]
    return losses, weights, counts


def move(grid):
    x = distribute_tensor(torch.arange(40.0).view(8, 5), grid, [Shard(0), Replicate()])
    y = x.redistribute(grid, [Replicate(), Shard(0)])
    z = (x.cos() @ y.t().contiguous()).redistribute(placements=[Replicate(), Replicate()])
    pending = DTensor.from_local(torch.ones(3, 3) * (grid.get_rank() + 1), grid["tp"], [Partial()], run_check=False)
    made = full((4, 4), 3.0, device_mesh=grid, placements=[Shard(0), Shard(1)]) + ones(
        4, 4, device_mesh=grid, placements=[Shard(0), Shard(1)]
    )
    blank = zeros((4, 4), device_mesh=grid, placements=[Shard(0), Shard(1)])
    with implicit_replication():
        mixed = x + torch.ones(8, 5)
    results = [z.to_local(), pending.full_tensor(), made.full_tensor(), blank.full_tensor(), mixed.full_tensor()]
    return [r.tolist() for r in results], [str(p) for p in (*y.placements, *pending.placements)]


def call_collectives(mesh):
    x = torch.arange(8.0) + mesh.get_rank()
    pieces = [
        funcol.all_reduce(x, "sum", mesh),
        funcol.all_gather_tensor(x, 0, (mesh, 0)),
        funcol.reduce_scatter_tensor(x, "avg", 0, mesh.get_group()),
        funcol.all_to_all_single(x, None, None, mesh),
        funcol.broadcast(x, 1, mesh),
        *funcol.all_reduce_coalesced([x, 2 * x], "max", mesh),
    ]
    return [funcol.wait_tensor(p).tolist() for p in pieces]


def map_locally(mesh):
    def multiply(on, a, b):
        return funcol.all_reduce(torch.mm(a, b), "sum", on).wait()

    a = distribute_tensor(torch.arange(32.0).view(4, 8), mesh, [Shard(0)])
    b = distribute_tensor(torch.arange(24.0).view(8, 3), mesh, [Shard(0)])
    mapped = local_map(
        multiply,
        out_placements=[Replicate()],
        in_placements=(None, [Shard(1)], [Shard(0)]),
        device_mesh=mesh,
        redistribute_inputs=True,
    )
    product = mapped(mesh, a, b)
    return product.to_local().tolist(), isinstance(product, DTensor), isinstance(product, torch.Tensor)


def distribute(mesh):
    def split(name, module, on):
        for key, p in list(module.named_parameters(recurse=False)):
            module.register_parameter(key, nn.Parameter(distribute_tensor(p, on, [Shard(0)])))

    model = distribute_module(
        make_block().up,
        mesh,
        split,
        input_fn=lambda module, inputs, on: DTensor.from_local(inputs[0], on, [Replicate()]),
        output_fn=lambda module, outputs, on: outputs.redistribute(placements=[Replicate()]).to_local(),
    )
    model(torch.ones(3, 8).double()).sum().backward()
    style = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
    piece = parallelize_module(nn.Identity(), mesh, style)(torch.arange(8.0))
    return model.weight.grad.full_tensor().tolist(), [str(p) for p in model.weight.placements], piece.tolist()


def main():
    mesh = init_device_mesh("cpu", (4,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return {
        "train": train(mesh),
        "move": move(grid),
        "collectives": call_collectives(mesh),
        "local_map": map_locally(mesh),
        "distribute": distribute(mesh),
    }
