"""Some steps of a small model under lightning's ModelParallelStrategy: what it computed, as JSON, from rank 0."""

import json
import logging
import os
import sys
import time

import lightning as L
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS, BATCH = 4, 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False), nn.Linear(16, 32, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.net = Net()
        self.losses, self.times = [], []

    def configure_model(self):
        mesh = self.device_mesh
        if mesh is None or hasattr(self, "is_parallel"):
            return
        self.is_parallel = True
        if mesh["tensor_parallel"].size() > 1:
            plan = {"w1": ColwiseParallel(), "w2": RowwiseParallel(), "w3": ColwiseParallel()}
            parallelize_module(self.net, mesh["tensor_parallel"], plan)
        if mesh["data_parallel"].size() > 1:
            fully_shard(self.net, mesh=mesh["data_parallel"])

    def training_step(self, batch, number):
        begin = time.perf_counter()
        copies = 1 if self.device_mesh is None else self.device_mesh["data_parallel"].size()
        mine = 0 if copies == 1 else self.device_mesh["data_parallel"].get_local_rank()
        rows = BATCH // copies
        x = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(number))[mine * rows : (mine + 1) * rows]
        loss = (self.net(x) - x).square().mean()
        value = loss.detach().clone()
        if copies > 1:
            dist.all_reduce(value, group=self.device_mesh["data_parallel"].get_group())
        self.losses.append(value.item() / copies)
        self.times.append(time.perf_counter() - begin)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=1e-2)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.zeros(STEPS, 1), batch_size=1)


def main():
    options = {key: int(value) for key, value in (pair.split("=") for pair in sys.argv[1:])}
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    size = int(os.environ["WORLD_SIZE"])
    os.environ["TORCHELASTIC_RUN_ID"] = "clients"  # the ranks are there already
    os.environ["LOCAL_WORLD_SIZE"], os.environ["GROUP_RANK"] = str(size), "0"
    parallel = {}
    if size > 1:
        strategy = ModelParallelStrategy(options.get("dp", 1), options.get("tp", 1), process_group_backend="gloo")
        parallel = {"strategy": strategy, "devices": size, "use_distributed_sampler": False}
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **parallel,
    )  # fmt: skip
    module = Module()
    trainer.fit(module)
    if int(os.environ["RANK"]) == 0:
        result = {"losses": module.losses, "ms": 1000 * min(module.times), "collectives": None}
        print("RESULT " + json.dumps(result), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
