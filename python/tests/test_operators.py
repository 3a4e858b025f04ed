"""Operators on distributed tensors: types, shapes and errors are those of plain ones; a user's own operators."""

import pytest
import torch
from meshtorch import Replicate, Shard, distribute_tensor
from torch import nn


def masked_variance(w):
    x = torch.sin(torch.arange(125.0)).view(5, 5, 5)
    mask = torch.arange(25).view(5, 5) % 3 > 0
    mesh = w.mesh()
    dx, dm = (distribute_tensor(t, mesh, [Shard(0)]) for t in (x, mask))
    for correction in (-5, 1):
        result = torch.masked.var(dx, mask=dm, correction=correction)
        w.same(result.full_tensor(), torch.masked.var(x, mask=mask, correction=correction))


def test_ranks_compute_one_type(ranks):
    ranks(masked_variance)


def shapes_of_each_call(w):
    mesh = w.mesh()
    for values in ([1, 1, 2, 0], [1, 2, 3, 4], [0, 0, 0, 0]):
        whole = torch.tensor(values)
        x = distribute_tensor(whole, mesh, [Shard(0)])
        for call in (torch.unique, torch.unique_consecutive, torch.nonzero, torch.argwhere):
            if w.kind != "fake":  # where nothing is communicated, the data is not that of the whole
                w.same(call(x).full_tensor(), call(whole))


def test_shapes_that_depend_on_data_are_those_of_each_call(ranks):
    ranks(shapes_of_each_call)


torch.library.define("meshtorch_tests::with_row_numbers", "(Tensor x) -> Tensor")


def with_row_numbers(x):
    return x + torch.arange(x.size(0), dtype=x.dtype).unsqueeze(1)


torch.library.impl("meshtorch_tests::with_row_numbers", "CompositeImplicitAutograd")(with_row_numbers)


def own_composite(w):
    whole = torch.sin(torch.arange(20.0)).view(5, 4)
    x = distribute_tensor(whole, w.mesh(), [Shard(0)]).requires_grad_()
    y = torch.ops.meshtorch_tests.with_row_numbers(x)
    w.same(y.full_tensor(), with_row_numbers(whole))
    y.sum().backward()
    w.same(x.grad.full_tensor(), torch.ones(5, 4))


def test_own_composite_operators_decompose(ranks):
    ranks(own_composite)


def optimizer_over_meshes(w):
    mesh = w.mesh(2, 2, names=("a", "b"))
    whole = [torch.sin(torch.arange(12.0) + i).view(4, 3) for i in range(4)]
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        plain = [nn.Parameter(t.clone()) for t in whole]
        placed = [nn.Parameter(distribute_tensor(t, mesh["ab"[i % 2]], [Shard(0)])) for i, t in enumerate(whole)]
        for parameters in (plain, placed):
            optimizer = torch.optim.AdamW(parameters, lr=0.1, **options)
            for _ in range(2):
                for p in parameters:
                    p.grad = (p * p).detach()
                optimizer.step()
        for p, expected in zip(placed, plain):
            w.same(p.full_tensor(), expected)


def test_optimizers_step_over_parameters_of_several_meshes(ranks):
    ranks(optimizer_over_meshes)


def refused_values(w):
    mesh = w.mesh()
    table = distribute_tensor(torch.ones(5, 3), mesh, [Shard(0)])
    with pytest.raises(IndexError, match="index out of range"):
        nn.functional.embedding(distribute_tensor(torch.tensor([0, 7]), mesh, [Replicate()], src_data_rank=None), table)
    with pytest.raises(ValueError, match="no tensor has a dim 4294967296"):
        Shard(2**32)
    if w.kind != "fake":
        with pytest.raises(ValueError, match="below 0 or above 1"):
            torch.bernoulli(distribute_tensor(torch.tensor([0.5, 7.0]), mesh, [Shard(0)]))
    with pytest.raises(RuntimeError, match="got a plain tensor beside distributed ones"):
        torch.equal(table, torch.ones(5, 3))


def test_values_that_torch_refuses_are_refused(ranks):
    ranks(refused_values)
