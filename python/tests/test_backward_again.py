"""Several backward passes through what nothing is saved for: from_local, to_local, redistribute and collectives."""

import pytest
import torch
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch import functional_collectives as funcol
from worlds import on_ranks


def twice(w, make_inside, leaf):
    """The gradients of two losses that share what `make_inside` makes, one backward after the other without retain_graph, are those of
    their sum."""
    inside = make_inside(leaf)
    losses = [(2 * inside).sum(), (inside * 3).sum()]
    for loss in losses:
        loss.backward()
    found, leaf.grad = leaf.grad, None
    (5 * make_inside(leaf)).sum().backward()
    expected, leaf.grad = leaf.grad, None
    whole = [g.full_tensor() if isinstance(g, DTensor) else g for g in (found, expected)]
    w.same(*whole)


@on_ranks
def test_backward_passes_may_share_a_conversion(w):
    mesh = w.mesh()
    plain = torch.linspace(-1, 1, 32).view(8, 4)
    if w.kind != "fake":  # which takes no shards without elements in an exchange
        plain = plain[:5]

    def leaf():
        return plain.clone().requires_grad_()

    def split():
        return distribute_tensor(plain, mesh, [Shard(0)]).requires_grad_()

    for placement in (Replicate(), Shard(0), Partial()):
        twice(w, lambda x, p=placement: DTensor.from_local(x, mesh, [p]), leaf())
    twice(w, lambda x: x.to_local(), split())
    twice(w, lambda x: x.full_tensor(), split())
    for placement in (Replicate(), Shard(1)):
        twice(w, lambda x, p=placement: x.redistribute(mesh, [p]), split())
        twice(w, lambda x, p=placement: x.redistribute(mesh, [p]).to_local(), split())


@on_ranks
def test_backward_passes_may_share_a_collective(w):
    mesh = w.mesh()
    plain = torch.linspace(-1, 1, 24).view(8, 3)
    for call in (
        lambda x: funcol.all_reduce_autograd(x, "sum", mesh),
        lambda x: funcol.all_gather_tensor_autograd(x, 0, mesh),
        lambda x: funcol.reduce_scatter_tensor_autograd(x, "avg", 0, mesh),
        lambda x: funcol.all_to_all_single_autograd(x, None, None, mesh),
        lambda x: funcol.all_reduce_coalesced([x, 2 * x.detach()], "sum", mesh)[0],
        lambda x: funcol.all_gather_into_tensor_coalesced([x, x.detach()], mesh)[0],
        lambda x: funcol.reduce_scatter_tensor_coalesced([x, x.detach()], "sum", [0, 0], mesh)[0],
        lambda x: funcol.broadcast(x, 0, mesh),
        lambda x: funcol.permute_tensor(x, [1, 2, 3, 0], mesh),
    ):
        twice(w, call, plain.clone().requires_grad_())


@on_ranks
def test_a_collective_that_saves_its_input_gives_it_up(w):
    x = torch.linspace(1, 2, 4, requires_grad=True)
    largest = funcol.all_reduce_autograd(x, "max", w.mesh())
    losses = [(2 * largest).sum(), (3 * largest).sum()]
    losses[0].backward()
    with pytest.raises(RuntimeError, match="was freed by an earlier backward"):
        losses[1].backward()
