"""A pending tensor that is scaled in place is not reduced again; numbers of many tensors are reduced together."""

import torch
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch.debug import CommDebugMode
from meshtorch.fsdp import fully_shard
from worlds import filled, on_ranks


def collectives_of(call):
    comm = CommDebugMode()
    with comm:
        call()
    return comm.get_total_counts()


@on_ranks
def test_scaling_in_place_scales_what_was_reduced(w):
    mesh, terms = w.mesh(), torch.arange(12.0).view(4, 3)
    x = DTensor.from_local(terms * (w.rank + 1), mesh, [Partial()])
    expected = terms * (w.size * (w.size + 1) // 2)
    assert collectives_of(lambda: torch.relu(x)) == 1
    read, before = x.redistribute(mesh, [Replicate()]), expected.clone()
    for scale in (
        lambda t: t.mul_(2),
        lambda t: t.div_(torch.tensor(4.0)),
        lambda t: torch._foreach_mul_([t], torch.tensor(8.0)),
        lambda t: torch._foreach_div_([t], 2.0),
    ):
        scale(x), scale(expected)
    found = []
    assert collectives_of(lambda: found.append(torch.relu(x))) == 0
    w.same(found[0].full_tensor(), expected)
    w.same(read.to_local(), before)
    assert x.placements == (Partial(),)
    x.mul_(3)
    x.add_(x)  # no number: the terms are written
    expected.mul_(6)
    w.same(torch.relu(x).full_tensor(), expected)


def _gradients(dtype):
    """Of uneven sizes, some smaller than the ranks, and one number."""
    return [(torch.arange(1.0, 1 + n).view(shape) / 3).sin().to(dtype) for n, shape in ((15, (5, 3)), (6, (6,)), (2, (2, 1)), (1, (1,)), (1, ()))]


@on_ranks
def test_norms_of_a_list_are_reduced_together(w):
    mesh = w.mesh(2, 2)
    layouts = ([Shard(0), Shard(0)], [Shard(0), Replicate()], [Replicate(), Shard(0)], [Partial(), Replicate()])
    for dtype in (torch.float64, torch.bfloat16):
        plain = _gradients(dtype)
        for order in (2, 1, 0, 3, float("inf"), -float("inf")):
            for placements in layouts:
                split = [distribute_tensor(t, mesh, placements if t.dim() else [Replicate()] * 2) for t in plain]
                if not any(p.is_partial() for p in placements):  # the largest element of what some ranks have nothing of is gathered
                    counted = split[:2] if abs(order) == float("inf") else split
                    assert collectives_of(lambda: torch._foreach_norm(counted, order)) == 1
                for ours, theirs in zip(torch._foreach_norm(split, order), torch._foreach_norm(plain, order)):
                    assert not any(p.is_partial() for p in ours.placements)
                    w.same(ours.full_tensor(), theirs)
    mixed = [distribute_tensor(t, mesh, layouts[number % 3] if t.dim() else [Replicate()] * 2) for number, t in enumerate(_gradients(torch.float64))]
    with CommDebugMode() as comm:
        total = torch.nn.utils.get_total_norm(mixed)
    assert comm.get_total_counts() <= 3
    w.same(total.full_tensor(), torch.nn.utils.get_total_norm(_gradients(torch.float64)))


@on_ranks
def test_clipping_sharded_gradients_sends_one_number_each_together(w):
    mesh = w.mesh()
    net, plain = (torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(4))).double() for _ in range(2))
    filled(net), filled(plain)
    fully_shard(net, mesh=mesh)
    for model in (net, plain):
        model(torch.ones(3, 5, dtype=torch.float64)).square().sum().backward()
    with CommDebugMode() as comm:
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    assert comm.get_total_counts() == 1
    w.same(norm.full_tensor(), torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1))
    for ours, theirs in zip(net.parameters(), plain.parameters()):
        w.same(ours.grad.full_tensor(), theirs.grad)
