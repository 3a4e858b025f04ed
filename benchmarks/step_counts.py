"""What a training step sends here and in PyTorch's DTensor, for the same placements of parameters, in one run.

    PYTHONPATH=build/release/python python benchmarks/step_counts.py [--mesh 2 2]

Nothing but placements says how the models run: no styles, no redistribution by hand. On ranks of a fake group, so that nothing is sent; both
libraries are counted by meshtorch's CommDebugMode, bytes as a ring sends them. Forward, backward and a step of AdamW, the second of two.
"""

import argparse
import json
import math
import warnings

import torch
import torch.distributed as dist
import torch.distributed.tensor as stock
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

import meshtorch
from meshtorch.debug import CommDebugMode

CLASSES, WIDTH = 512, 256


class Attention(nn.Module):
    def __init__(self, heads=8):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x_BSD):
        q, k, v = (one(x_BSD).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        scores = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(WIDTH / self.heads), -1)
        return self.o((scores @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x_BSD):
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD))
        return x_BSD + self.down(F.gelu(self.up(self.norm(x_BSD))))


def gpt():
    model = nn.Sequential(nn.Embedding(CLASSES, WIDTH), Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False))
    return model, torch.randint(CLASSES, (8, 64)), torch.randint(CLASSES, (8, 64))


def mlp():
    layers = {"up": nn.Linear(WIDTH, 4 * WIDTH), "relu": nn.ReLU(), "down": nn.Linear(4 * WIDTH, WIDTH), "tanh": nn.Tanh()}
    model = nn.Sequential()
    for name, layer in {**layers, "out": nn.Linear(WIDTH, CLASSES)}.items():
        model.add_module(name, layer)
    return model, torch.rand(256, WIDTH), torch.randint(CLASSES, (256,))


COLUMNS, ROWS = {"q", "k", "v", "up"}, {"o", "down"}


def placements_of(plan, name, tensor, axes, library):
    """dp: whole parameters; zero: split over the first axis; tp: Megatron's columns and rows over the last one."""
    whole, layer = [library.Replicate()] * axes, name.split(".")[-2]
    if plan == "zero":
        return [library.Shard(0), *whole[1:]]
    if plan == "tp" and layer in COLUMNS:
        return [*whole[1:], library.Shard(0)]
    if plan == "tp" and layer in ROWS and tensor.ndim == 2:
        return [*whole[1:], library.Shard(1)]
    return whole


def sent(library, mesh, make, plan):
    """(collectives, bytes) of one step."""
    torch.manual_seed(0)
    model, x, target = make()
    for path, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False):
            placements = placements_of(plan, f"{path}.{name}", p, mesh.ndim, library)
            setattr(module, name, nn.Parameter(library.distribute_tensor(p.detach(), mesh, placements)))
    # With one axis for tensor parallelism alone, every rank has the whole batch.
    is_split = plan != "tp" or mesh.ndim > 1
    batch = [library.Shard(0) if is_split else library.Replicate()] + [library.Replicate()] * (mesh.ndim - 1)
    x, target = (library.distribute_tensor(t, mesh, batch) for t in (x, target))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        optimizer.zero_grad()
        with CommDebugMode() as comm:
            F.cross_entropy(model(x).flatten(0, -2), target.flatten()).backward()
            optimizer.step()
    collectives = json.loads(comm.json())["collectives"]
    return comm.get_total_counts(), sum(one["bytes_sent"] for one in collectives.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", type=int, nargs="+", default=[4])
    shape = tuple(parser.parse_args().mesh)
    warnings.simplefilter("ignore")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=math.prod(shape))
    libraries = (meshtorch, meshtorch.init_device_mesh("cpu", shape)), (stock, dist.device_mesh.init_device_mesh("cpu", shape))
    print(f"| model, placements, mesh {' x '.join(map(str, shape))} | here | PyTorch |\n|---|---|---|")
    for make in (gpt, mlp):
        for plan in ("dp", "zero", "tp"):
            counted = [sent(library, mesh, make, plan) for library, mesh in libraries]
            cells = (f"{count} ({size / 1e6:.1f} MB)" for count, size in counted)
            print(f"| {make.__name__}, {plan} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
