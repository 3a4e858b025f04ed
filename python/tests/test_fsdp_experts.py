"""Parameters on another mesh that a module reads as plain parts while fully_shard keeps them whole: experts."""

import torch
from meshtorch import Replicate, Shard, distribute_tensor
from meshtorch.fsdp import fully_shard
from torch import nn
from worlds import on_ranks


class Experts(nn.Module):
    """Some experts of a layer on each rank of a mesh, run one after the other on what their rank has of the input."""

    def __init__(self, mesh, placement, count=4, width=6, hidden=5):
        super().__init__()
        weight = torch.sin(torch.arange(count * width * hidden, dtype=torch.float64)).view(count, width, hidden)
        self.w = nn.Parameter(distribute_tensor(weight, mesh, [placement]))

    def forward(self, x):
        w = self.w.to_local()
        return sum((x @ w[i]).tanh().sum() for i in range(w.size(0)))


@on_ranks
def test_views_of_a_part_stay_valid_when_it_is_gathered_again(w):
    mesh = w.mesh(2, w.size // 2, names=("dp", "ep"))
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(2, 6).requires_grad_()
    for reshard in (True, False):
        experts, plain = Experts(mesh["ep"], Shard(0)), Experts(mesh["ep"], Shard(0))
        fully_shard(experts, mesh=mesh["dp"], reshard_after_forward=reshard)
        for _ in range(2):
            for module in (experts, plain):
                module(x).backward()
        w.same(experts.w.grad.full_tensor(), plain.w.grad.full_tensor())


class Transposed(Experts):
    def forward(self, x):
        w = self.w.to_local().transpose(1, 2).unbind()
        return sum(nn.functional.linear(x, part).square().sum() for part in w)


@on_ranks
def test_views_of_views_of_a_part_stay_valid_too(w):
    mesh = w.mesh(2, w.size // 2, names=("dp", "tp"))
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(2, 6).requires_grad_()
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        experts, plain = (Transposed(mesh["tp"], placement) for _ in range(2))
        fully_shard(experts, mesh=mesh["dp"], reshard_after_forward=True)
        rows = x[:, : plain.w.to_local().size(1)]
        for module in (experts, plain):
            module(rows).backward()
        w.same(experts.w.grad.full_tensor(), plain.w.grad.full_tensor())
