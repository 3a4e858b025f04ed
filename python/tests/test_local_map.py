"""local_map: functions of plain tensors on the shards of distributed ones."""

from importlib.util import find_spec

import meshtorch.functional_collectives as funcol
import pytest
import torch
from meshtorch import DTensor, Replicate, Shard, distribute_tensor
from meshtorch.debug import CommDebugMode
from meshtorch.experimental import implicit_replication, local_map
from worlds import on_gloo_ranks, on_ranks

ROWS, COLUMNS, WHOLE = [Shard(0)], [Shard(1)], [Replicate()]


def are_equal(mesh, a, b):
    return torch.all(funcol.all_gather_tensor(torch.tensor([torch.equal(a, b)]), 0, mesh)).item()


def multiply(a, b):
    return torch.mm(a, b)


def multiply_and_gather(mesh, a, b):
    return funcol.all_gather_tensor(torch.mm(a, b), 0, mesh).wait()


def multiply_and_reduce(mesh, a, b):
    return funcol.all_reduce(torch.mm(a, b), "sum", mesh).wait()


def scale(x, factor):
    return torch.mul(x, factor)


def matrices():
    return torch.arange(96.0).view(12, 8).cos(), torch.arange(128.0).view(8, 16).sin()


@on_ranks
def test_a_function_that_reduces(w):
    mesh, comm = w.mesh(), CommDebugMode()
    a, b = matrices()
    mapped = local_map(
        multiply_and_reduce, out_placements=WHOLE, in_placements=(None, COLUMNS, ROWS), device_mesh=mesh
    )
    da, db = distribute_tensor(a, mesh, COLUMNS), distribute_tensor(b, mesh, ROWS)
    with comm:
        product = mapped(mesh, da, db)
    assert comm.get_total_counts() == 1
    assert isinstance(product, DTensor) and all(p.is_replicate() for p in product.placements)
    w.same(product.to_local(), a @ b)


@on_ranks
def test_gradients_are_those_of_the_whole_function(w):
    mesh = w.mesh()
    a, b = (m.requires_grad_() for m in matrices())
    (a @ b).square().sum().backward()
    cases = (
        (multiply, ROWS, WHOLE, ROWS),
        (multiply, WHOLE, COLUMNS, COLUMNS),
        (multiply, WHOLE, WHOLE, WHOLE),
        (lambda x, y: multiply_and_reduce(mesh, x, y), COLUMNS, ROWS, WHOLE),
        (lambda x, y: multiply_and_gather(mesh, x, y), ROWS, WHOLE, WHOLE),
    )
    for function, a_lies, b_lies, out in cases:
        x = distribute_tensor(a.detach(), mesh, a_lies).requires_grad_()
        y = distribute_tensor(b.detach(), mesh, b_lies).requires_grad_()
        local_map(function, out_placements=out)(x, y).square().sum().backward()
        w.same(x.grad.full_tensor(), a.grad, rtol=1e-4, atol=1e-4)
        w.same(y.grad.full_tensor(), b.grad, rtol=1e-4, atol=1e-4)


@on_ranks
def test_outputs_that_are_no_tensors_and_calls_without_distributed_arguments(w):
    mesh, comm = w.mesh(), CommDebugMode()
    a, b = torch.ones(8, 8), torch.zeros(8, 8)
    da, db = distribute_tensor(a, mesh, ROWS), distribute_tensor(b, mesh, ROWS)
    with comm:
        answer = local_map(are_equal, out_placements=None)(mesh, da, db)
    assert comm.get_total_counts() == 1
    assert answer in (True, False) and (w.kind == "fake" or answer is False)

    mapped = local_map(multiply_and_gather, out_placements=ROWS, in_placements=(None, ROWS, WHOLE))
    x, y = torch.full((1, 4), float(w.rank)), torch.eye(4)
    with comm:
        product = mapped(mesh, x, y)  # without a distributed argument it is the function itself
    assert comm.get_comm_counts()[torch.ops.c10d_functional.all_gather_into_tensor] == comm.get_total_counts() == 1
    assert not isinstance(product, DTensor)
    w.same(product, torch.arange(float(w.size)).view(-1, 1).expand(w.size, 4))


@on_ranks
def test_in_placements_are_checked(w):
    mesh, comm = w.mesh(), CommDebugMode()
    a, b = matrices()
    da, db = distribute_tensor(a, mesh, ROWS), distribute_tensor(b, mesh, WHOLE)
    for given in (mesh, None):
        with comm:
            product = local_map(multiply, out_placements=ROWS, in_placements=(ROWS, WHOLE), device_mesh=given)(da, db)
        assert comm.get_total_counts() == 0
        assert product.placements == (Shard(0),)
        w.same(product.full_tensor(), a @ b)
    scaled = local_map(scale, out_placements=ROWS, in_placements=(ROWS, None))(da, 10.0)
    w.same(scaled.full_tensor(), a * 10)
    with pytest.raises(AssertionError, match="expects no placements but received"):
        local_map(scale, out_placements=ROWS, in_placements=(ROWS, WHOLE))(da, 10.0)
    with pytest.raises(AssertionError, match="in_placements length 1 does not match the number of input args 2"):
        local_map(scale, out_placements=ROWS, in_placements=(ROWS,))(da, 10.0)
    with pytest.raises(AssertionError, match="expects placements but received none"):
        local_map(scale, out_placements=ROWS, in_placements=(None, None))(da, 10.0)
    with pytest.raises(AssertionError, match="received 2 out_placements but 1 is expected"):
        local_map(scale, out_placements=(ROWS, ROWS))(da, 10.0)
    with pytest.raises(AssertionError, match="non-tensor output 0"):
        local_map(lambda x: 1, out_placements=ROWS)(da)


@on_ranks
def test_inputs_are_redistributed_when_asked(w):
    mesh, comm = w.mesh(), CommDebugMode()
    a, b = matrices()
    da, db = distribute_tensor(a, mesh, ROWS), distribute_tensor(b, mesh, COLUMNS)
    options = {"out_placements": WHOLE, "in_placements": (None, COLUMNS, ROWS), "device_mesh": mesh}
    with comm:
        product = local_map(multiply_and_reduce, redistribute_inputs=True, **options)(mesh, da, db)
    assert comm.get_total_counts() == 3
    w.same(product.to_local(), a @ b)
    with pytest.raises(ValueError, match="set redistribute_inputs=True"):
        local_map(multiply_and_reduce, redistribute_inputs=False, **options)(mesh, da, db)


@on_ranks
def test_all_arguments_lie_on_one_mesh(w):
    mesh, grid = w.mesh(), w.mesh(2, 2)
    on_grid = distribute_tensor(torch.ones(4, 4), grid, [Replicate(), Replicate()])
    on_line = distribute_tensor(torch.ones(4, 4), mesh, WHOLE)
    with pytest.raises(AssertionError, match="is on another mesh"):
        local_map(multiply, out_placements=WHOLE)(on_line, on_grid)
    with pytest.raises(AssertionError, match="is on another mesh"):
        local_map(multiply, out_placements=WHOLE, device_mesh=mesh)(on_grid, on_grid)


@on_ranks
def test_gradients_and_nested_values(w):
    mesh = w.mesh()
    a = torch.arange(24.0).view(8, 3)

    @local_map(out_placements=([Shard(0)], None), in_placements=(ROWS, None), in_grad_placements=(ROWS, None))
    def square(x, options):
        return x.square() * options["factor"], options["factor"]

    da = distribute_tensor(a.clone().requires_grad_(), mesh, ROWS)
    squared, factor = square(da, {"factor": 3})
    assert factor == 3
    squared.sum().backward()
    w.same(da.grad.full_tensor(), 6 * a)


@on_ranks
def test_plain_tensors_mix_only_inside_implicit_replication(w):
    split = distribute_tensor(torch.arange(4.0), w.mesh(), ROWS)
    with pytest.raises(RuntimeError, match="got a plain tensor beside distributed ones"):
        split + torch.ones(4)
    with implicit_replication():
        w.same((split + torch.ones(4)).full_tensor(), torch.arange(4.0) + 1)
    with pytest.raises(RuntimeError, match="got a plain tensor beside distributed ones"):
        split + torch.ones(4)


@pytest.mark.skipif(find_spec("spmd_types") is None, reason="the package spmd_types is not installed")
@on_gloo_ranks(size=2)
def test_spmd_types_check_the_function(w):
    from spmd_types import SpmdTypeError

    mesh = w.mesh()
    plain = [(torch.arange(30.0).view(5, 6) / 7).cos().requires_grad_(), (torch.arange(24.0).view(6, 4) / 5).sin().requires_grad_()]
    x, weight = (distribute_tensor(t.detach(), mesh, p).requires_grad_() for t, p in zip(plain, (ROWS, WHOLE)))
    product = local_map(torch.mm, ROWS, (ROWS, WHOLE), spmd_types=True)(x, weight)
    doubled = local_map(lambda t: 2 * t, WHOLE, spmd_types=True)(weight)
    (product.square().sum() + doubled.sin().sum()).backward()
    ((plain[0] @ plain[1]).square().sum() + (2 * plain[1]).sin().sum()).backward()
    for ours, theirs in zip((x, weight), plain):
        w.same(ours.grad.full_tensor(), theirs.grad)
    with pytest.raises(ValueError, match=r"an output of local_map is R on axis 0 of the mesh, and V for spmd_types"):
        local_map(torch.mm, WHOLE, (ROWS, WHOLE), spmd_types=True)(x, weight)
    with pytest.raises(ValueError, match=r"cannot represent the gradient R of a value that is S\(0\)"):
        local_map(torch.mm, ROWS, (ROWS, WHOLE), (WHOLE, WHOLE), spmd_types=True)(x, weight)
    with pytest.raises(SpmdTypeError, match="Invariant type on axis .* cannot mix"):  # a copy whose gradient is whole meets a part
        local_map(torch.mm, ROWS, (ROWS, WHOLE), (ROWS, WHOLE), spmd_types=True)(x, weight)


@on_ranks(size=2)
def test_spmd_types_need_their_package(w):
    if find_spec("spmd_types") is not None:
        return
    x = distribute_tensor(torch.ones(4), w.mesh(), ROWS)
    with pytest.raises(RuntimeError, match="requires the spmd_types package to be installed\n  do: install it"):
        local_map(torch.neg, ROWS, spmd_types=True)(x)
    assert local_map(torch.neg, ROWS, spmd_types=True)(torch.ones(2)).sum() == -2
