"""Distributed tensors in functions that torch.func transforms."""

import meshtorch.functional_collectives as funcol
import pytest
import torch
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor, zeros
from worlds import on_ranks

WEIGHT = torch.arange(15.0).view(5, 3).sin()
X = torch.arange(6.0).view(3, 2).cos()


@on_ranks(size=2)
def test_constants_may_be_made_in_a_transformed_function(w):
    mesh = w.mesh()
    split = distribute_tensor(WEIGHT, mesh, [Shard(0)])
    x = distribute_tensor(X, mesh, [Replicate()])
    makers = {
        "distribute_tensor": lambda: distribute_tensor(WEIGHT, mesh, [Shard(0)]),
        "own data": lambda: distribute_tensor(WEIGHT, mesh, [Shard(0)], src_data_rank=None),
        "from_local": lambda: DTensor.from_local(WEIGHT, mesh, [Replicate()]),
        "redistribute": lambda: split.redistribute(mesh, [Replicate()]),
        "to_local and back": lambda: DTensor.from_local(split.to_local(), mesh, [Shard(0)], shape=WEIGHT.shape, stride=(3, 1)),
        "a factory": lambda: split + zeros(5, 3, device_mesh=mesh, placements=[Shard(0)]),
    }
    expected = torch.func.grad(lambda x: (WEIGHT @ x).square().sum())(X)
    _, tangent = torch.func.jvp(lambda x: (WEIGHT @ x).square().sum(), (X,), (X,))
    for name, make in makers.items():
        actual = torch.func.grad(lambda x, make=make: (make() @ x).square().sum())(x)
        w.same(actual.full_tensor(), expected, msg=name)
        if w.kind != "threads":  # which share one level of tangents
            actual = torch.func.jvp(lambda x, make=make: (make() @ x).square().sum(), (x,), (x,))[1]
            w.same(actual.full_tensor(), tangent, msg=name)
    actual = torch.func.grad(lambda x: (split.full_tensor() @ x).square().sum())(X)
    w.same(actual, expected)


@on_ranks(size=2)
def test_arguments_of_a_transformed_function_are_refused(w):
    mesh = w.mesh()
    of_plain = {
        "distribute_tensor": lambda x: distribute_tensor(x, mesh, [Shard(0)]),
        "from_local": lambda x: DTensor.from_local(x, mesh, [Partial()]),
        "a collective": lambda x: funcol.all_reduce(x, "sum", mesh),
    }
    for where, call in of_plain.items():
        for transform in (torch.func.grad, torch.func.vmap):
            with pytest.raises(NotImplementedError, match=f"(?s)depends on the arguments of torch.func.*in: {where}.*do: make"):
                transform(lambda x, call=call: call(x).sum())(X)
            assert torch.equal(torch.func.grad(lambda x: x.square().sum())(X), 2 * X)  # nothing is left behind
