"""Some steps of a small model with an optimiser of torchao, sharded by fully_shard: as JSON, from rank 0.

    torchao_steps.py AdamW8bit
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torchao.optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

STEPS, WIDTH = 4, 128


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.compile = lambda function, **_: function  # a mode that counts is open around the optimiser's steps
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))
    if size > 1:
        mesh = init_device_mesh("cpu", (size,))
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh)
    optimizer = getattr(torchao.optim, sys.argv[1])(model.parameters(), lr=1e-3)
    losses, times, counts = [], [], 0
    for step in range(STEPS):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step)).chunk(size)[rank]
        begin = time.perf_counter()
        with CommDebugMode() as comm:
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
        counts = comm.get_total_counts()
        value = loss.detach().clone()
        dist.all_reduce(value)
        losses.append(value.item() / size)
    if rank == 0:
        print("RESULT " + json.dumps({"losses": losses, "ms": 1000 * min(times), "collectives": counts}), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
