"""A step of data-parallel training beside PyTorch's DDP and FSDP2, on processes of one host.

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/data_parallel.py --dims 64 512

Processes of one thread each; pre-norm transformer blocks; AdamW with foreach; the global batch is the same in every row. Each
row runs in processes of its own: PyTorch's on gloo, meshtorch's on shm where it says nothing else. All rows run in turn, several times; times are
medians of the steps of the slowest rank, in the round in which they were lowest. Those of the CPU count all threads of a
rank, and say more on a machine that others use.
"""

import argparse
import json
import os
import resource
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, d))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def make_model(dim, depth):
    torch.manual_seed(0)
    return nn.Sequential(*(Block(dim, 8) for _ in range(depth)), nn.LayerNorm(dim))


def one_process(model):
    return model


def ddp(model):
    return nn.parallel.DistributedDataParallel(model)


def fsdp2(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in list(model)[:-1]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def meshtorch_replicate(model):
    from meshtorch.fsdp import replicate

    return replicate(model)


def meshtorch_fully_shard(model):
    from meshtorch.fsdp import fully_shard

    for block in list(model)[:-1]:
        fully_shard(block)
    return fully_shard(model)


def meshtorch_nothing_ahead(model):
    """The same without gathering the next group while one computes."""
    model = meshtorch_fully_shard(model)
    for module in (*list(model)[:-1], model):
        module.set_modules_to_forward_prefetch([])
        module.set_modules_to_backward_prefetch([])
    return model


ROWS = {
    "one process": (one_process, 1, "gloo"),
    "DDP": (ddp, 2, "gloo"),
    "meshtorch replicate": (meshtorch_replicate, 2, "shm"),
    "FSDP2": (fsdp2, 2, "gloo"),
    "meshtorch fully_shard": (meshtorch_fully_shard, 2, "shm"),
    "meshtorch, nothing ahead": (meshtorch_nothing_ahead, 2, "shm"),
    "meshtorch on gloo": (meshtorch_fully_shard, 2, "gloo"),
    "meshtorch on gloo, nothing ahead": (meshtorch_nothing_ahead, 2, "gloo"),
}
# What it costs that ranks compare their calls and their replicas: by --rows only.
COMPARED = {
    "meshtorch on gloo, not compared": (meshtorch_fully_shard, 2, "gloo"),
    "meshtorch replicate, level calls": (meshtorch_replicate, 2, "shm"),
    "meshtorch fully_shard, level calls": (meshtorch_fully_shard, 2, "shm"),
}
LEVELS = {"not compared": "off", "level calls": "calls"}


WARM_UP = 4


def measure(rank, row, dim, args, port, results):
    make, size, backend = (ROWS | COMPARED)[row]
    level = LEVELS.get(row.partition(", ")[2])
    if level:
        os.environ["MESHTORCH_AGREEMENT"] = level
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    if row.startswith("meshtorch"):
        import meshtorch  # noqa: F401, which names the backend
    dist.init_process_group(backend, rank=rank, world_size=size)
    model = make(make_model(dim, args.depth))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    generator = torch.Generator().manual_seed(1)
    batch = torch.randn(8, 64, dim, generator=generator).chunk(size)[rank]
    times, cpu_times, losses = [], [], []
    steps = WARM_UP + args.steps
    while len(times) < steps:
        if len(times) == WARM_UP:  # small steps are many, in the same number on all ranks
            wanted = torch.tensor([args.seconds / times[-1]])
            dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
            steps = WARM_UP + max(args.steps, int(wanted))
        begin, cpu_begin = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
        cpu_times.append(time.process_time() - cpu_begin)
        losses.append(loss.item())
    median, cpu_median = (sorted(each[WARM_UP:])[(steps - WARM_UP) // 2] for each in (times, cpu_times))
    results.put((median, cpu_median, sum(losses[: WARM_UP + args.steps]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(row, dim, args):
    """What one row takes, in processes of its own."""
    size = (ROWS | COMPARED)[row][1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(measure, (row, dim, args, free_port(), results), nprocs=size)
    wall, cpu, losses, peaks = zip(*(results.get() for _ in range(size)))
    return {"ms": 1e3 * max(wall), "cpu_ms": 1e3 * max(cpu), "losses": sum(losses) / size, "peak": max(peaks)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--rows", nargs="+", choices=ROWS | COMPARED, default=list(ROWS))
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5, help="of each row, at least")
    parser.add_argument("--seconds", type=float, default=2, help="of each row, about, if its steps are small")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", help="a file for the results")
    args = parser.parse_args()
    lines = []
    for dim in args.dims:
        print(f"dim {dim}: {args.depth} blocks, batch 8 x 64")
        rounds = [{row: run(row, dim, args) for row in args.rows} for _ in range(args.rounds)]
        for row in args.rows:
            best = min((each[row] for each in rounds), key=lambda found: found["ms"])
            lines.append({"dim": dim, "row": row, "ms": best["ms"], "cpu_ms": best["cpu_ms"]})
            print(
                f"  {row:34} {best['ms']:8.1f} ms   CPU {best['cpu_ms']:8.1f} ms   "
                f"losses {best['losses']:.6f}   peak {best['peak'] / 1024:.0f} MiB",
                flush=True,
            )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(lines, file, indent=1)


if __name__ == "__main__":
    main()
