"""Some steps of a small model under accelerate's FSDP2: what it computed, as JSON, from rank 0."""

import functools
import json
import os
import sys
import time

os.environ["ACCELERATE_USE_CPU"] = "true"

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, set_seed
from torch import nn
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

STEPS, BATCH = 4, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.out = nn.ModuleList(Block() for _ in range(3)), nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def main():
    options = dict(pair.split("=") for pair in sys.argv[1:])
    torch.set_num_threads(1)
    plugin = None
    if int(os.environ["WORLD_SIZE"]) > 1:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=options.get("reshard", "yes") == "yes",
            auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
            state_dict_type="SHARDED_STATE_DICT",
            cpu_ram_efficient_loading=options.get("efficient") == "yes",
        )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    if plugin is not None:  # which accelerate takes for accelerators alone
        AcceleratorState._shared_state.update(distributed_type=DistributedType.FSDP, fsdp_plugin=plugin)
        accelerator.state.fsdp_plugin = plugin
    set_seed(1)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    net, optimizer = accelerator.prepare(net, optimizer)
    rank, size = accelerator.process_index, accelerator.num_processes
    rows = BATCH // size
    losses, norms, times, counts = [], [], [], 0
    for step in range(STEPS):
        batch = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(step))[rank * rows : (rank + 1) * rows]
        begin = time.perf_counter()
        with CommDebugMode() as comm:
            optimizer.zero_grad()
            loss = net(batch).square().mean()
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        times.append(time.perf_counter() - begin)
        counts = comm.get_total_counts()
        losses.append(accelerator.reduce(loss.detach().clone(), "mean").item())
        norms.append((norm.full_tensor() if isinstance(norm, DTensor) else norm).item())
    if rank == 0:
        result = {"losses": losses, "norms": norms, "ms": 1000 * min(times), "collectives": counts}
        print("RESULT " + json.dumps(result), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
