"""Models for the tests of meshtorch.fsdp, and the one training that they are judged by."""

import torch
from meshtorch import DTensor
from meshtorch.fsdp import fully_shard
from torch import nn
from worlds import filled

collectives = torch.ops.c10d_functional


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x, *, scale=None):
        y = x + self.down(torch.tanh(self.up(x)))
        return y if scale is None else y * scale

    def half(self, x):
        return self.up(x)


class Net(nn.Module):
    def __init__(self, width=6, hidden=5, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def new_net():
    return filled(Net().double())


def sharded(net, mesh, **options):
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def rows(batch, size, rank):
    each = len(batch) // size
    return batch[rank * each : (rank + 1) * each]


def expect_same_training(w, net, size, rank):
    plain = new_net()
    adams = [torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=True) for m in (plain, net)]
    for step in range(3):
        batch = torch.sin(torch.arange(4 * size * 6, dtype=torch.float64) + step).view(-1, 6)
        for adam in adams:
            adam.zero_grad()
        plain(batch).square().mean().backward()
        net(rows(batch, size, rank)).square().mean().backward()
        for (name, p), q in zip(net.named_parameters(), plain.parameters()):
            assert isinstance(p, DTensor) and isinstance(p.grad, DTensor), name
            w.same(p.grad.full_tensor(), q.grad, rtol=1e-9, atol=1e-9)
        for adam in adams:
            adam.step()
        for p, q in zip(net.parameters(), plain.parameters()):
            w.same(p.full_tensor(), q, rtol=1e-9, atol=1e-9)


def ones(rows=2):
    return torch.ones(rows, 6, dtype=torch.float64)


def pair(w, **options):
    """A net whose blocks are groups, and the same on one device."""
    return sharded(new_net(), w.mesh(names=("dp",)), **options), new_net()


def same_gradients(w, net, plain):
    for (name, p), q in zip(net.named_parameters(), plain.parameters()):
        assert (p.grad is None) == (q.grad is None), name
        if q.grad is not None:
            w.same(p.grad.full_tensor(), q.grad, rtol=1e-9, atol=1e-9)


def expect_same_gradients(w, net, plain, loss=lambda model: model(ones()).sum()):
    """Both run backward once."""
    for model in (net, plain):
        loss(model).backward()
    same_gradients(w, net, plain)
