"""Functional collectives: every way to name a group, results that wait by themselves."""

import meshtorch.functional_collectives as funcol
import pytest
import torch
import torch.distributed as dist
from meshtorch import DeviceMesh, init_device_mesh
from worlds import on_gloo_ranks, on_ranks


def mine(w, *shape):
    return torch.arange(float(torch.Size(shape).numel())).view(shape) + 100 * w.rank


def everyone(w, *shape):
    return [torch.arange(float(torch.Size(shape).numel())).view(shape) + 100 * rank for rank in range(w.size)]


@on_ranks
def test_each_collective(w):
    mesh = w.mesh()
    x, all_x = mine(w, 4, 3), everyone(w, 4, 3)
    total = torch.stack(all_x).sum(0)
    w.same(funcol.all_reduce(x, "sum", mesh), total)
    w.same(funcol.all_reduce(x, "avg", mesh).wait(), total / w.size)
    w.same(funcol.all_gather_tensor(x, 0, mesh), torch.cat(all_x))
    w.same(funcol.all_gather_tensor(x, 1, mesh), torch.cat(all_x, 1))
    w.same(funcol.reduce_scatter_tensor(x, "sum", 0, mesh), total.chunk(w.size)[w.rank])
    for name in ("SUM", "Sum"):
        w.same(funcol.all_reduce(x, name, mesh), total)
        w.same(funcol.all_reduce_coalesced([x], name, mesh)[0], total)
        w.same(funcol.reduce_scatter_tensor(x, name, 0, mesh), total.chunk(w.size)[w.rank])
    w.same(funcol.broadcast(x, 1, mesh), all_x[1])
    w.same(funcol.all_to_all_single(x, None, None, mesh), torch.cat([t[w.rank : w.rank + 1] for t in all_x]))
    w.same(funcol.permute_tensor(x, [1, 2, 3, 0], mesh), all_x[(w.rank - 1) % w.size])
    for result, expected in zip(funcol.all_reduce_coalesced([x, x + 1], "sum", mesh), (total, total + w.size)):
        w.same(result, expected)
    w.same(funcol.all_gather_into_tensor_coalesced([x], mesh)[0], torch.cat(all_x))
    w.same(funcol.reduce_scatter_tensor_coalesced([x], "sum", [0], mesh)[0], total.chunk(w.size)[w.rank])
    # The newer names.
    w.same(funcol.all_gather_single(x, 1, mesh), torch.cat(all_x, 1))
    w.same(funcol.reduce_scatter_single(x, "sum", 0, mesh), total.chunk(w.size)[w.rank])
    w.same(funcol.all_gather_single_coalesced([x], mesh)[0], torch.cat(all_x))
    w.same(funcol.reduce_scatter_single_coalesced([x], "sum", [0], mesh)[0], total.chunk(w.size)[w.rank])
    assert funcol.wait_tensor(x) is x and x.wait() is x
    funcol.barrier()
    with pytest.raises(ValueError, match="reduction"):
        funcol.all_reduce(x, "median", mesh)


@on_ranks
def test_differentiable_forms(w):
    mesh, x = w.mesh(), mine(w, 4).requires_grad_()
    (funcol.all_gather_tensor_autograd(x, 0, mesh) * torch.arange(4.0 * w.size)).sum().backward()
    w.same(x.grad, w.size * torch.arange(4.0 * w.size)[4 * w.rank : 4 * w.rank + 4])


@on_ranks
def test_plain_names_are_differentiable(w):
    mesh, x = w.mesh(), mine(w, 4).requires_grad_()
    weights = torch.arange(4.0)
    results = (
        (funcol.all_reduce(x, "sum", mesh) * weights, w.size * weights),
        (funcol.all_gather_tensor(x, 0, mesh), torch.full((4,), float(w.size))),
        (funcol.reduce_scatter_tensor(x, "sum", 0, mesh), torch.ones(4)),
        (funcol.all_to_all_single(x, None, None, mesh) * (w.rank + 1), torch.arange(1.0, w.size + 1)),
        (funcol.broadcast(x, 0, mesh), torch.full((4,), float(w.size if w.rank == 0 else 0))),
    )
    for result, expected in results:
        (gradient,) = torch.autograd.grad(result.sum(), x)
        w.same(gradient, expected)
    with torch.no_grad():
        assert not funcol.all_reduce(x, "sum", mesh).requires_grad
    assert not funcol.all_reduce(x.detach(), "sum", mesh).requires_grad


@on_ranks
def test_a_group_has_many_names(w):
    grid = w.mesh(2, 2, names=("dp", "tp"))
    x = torch.tensor([float(w.rank)])
    row = [0, 1] if w.rank < 2 else [2, 3]
    along_tp = torch.tensor([float(sum(row))])
    for group in ((grid, 1), (grid, "tp"), grid["tp"], row, grid.get_group("tp")):
        w.same(funcol.all_reduce(x, "sum", group), along_tp)
    w.same(funcol.all_reduce(x, "sum", None), torch.tensor([6.0]))
    if w.kind != "threads":
        group = grid.get_group("tp")
        assert isinstance(group, dist.ProcessGroup) and dist.get_process_group_ranks(group) == row
        w.same(funcol.all_reduce(x, "sum", group.group_name), along_tp)
        y = x.clone()
        dist.all_reduce(y, group=group)
        w.same(y, along_tp)
    with pytest.raises(TypeError, match="is no group of ranks"):
        funcol.all_reduce(x, "sum", 3.5)


@on_gloo_ranks
def test_groups_of_torch_distributed_are_used_as_they_are(w):
    assert w.mesh().get_group() is dist.group.WORLD
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine_of = pairs[w.rank // 2]
    mesh = DeviceMesh.from_group(mine_of, "cpu", mesh_dim_names=("pair",))
    assert mesh.get_group() is mine_of and mesh.mesh.tolist() == dist.get_process_group_ranks(mine_of)
    w.same(funcol.all_reduce(torch.tensor([float(w.rank)]), "sum", mesh), torch.tensor([1.0 if w.rank < 2 else 5.0]))
    crossing = [dist.new_group([0, 2]), dist.new_group([1, 3])][w.rank % 2]
    grid = DeviceMesh.from_group([crossing, mine_of], "cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    assert [dist.get_process_group_ranks(g) for g in grid.get_all_groups()] == [
        dist.get_process_group_ranks(g) for g in (crossing, mine_of)
    ]
    with pytest.raises(ValueError, match="needs at least one of them, mesh and mesh_dim_names"):
        DeviceMesh.from_group([crossing, mine_of], "cpu")
    with pytest.raises(ValueError, match=r"Invalid mesh \[0, 3\] for ProcessGroup with ranks"):
        DeviceMesh.from_group(mine_of, "cpu", [0, 3])
    with pytest.raises(ValueError, match="ndim equal to number of ProcessGroups but got mesh .* and 2 ProcessGroups"):
        DeviceMesh.from_group([crossing, mine_of], "cpu", [0, 1, 2, 3], mesh_dim_names=("dp", "tp"))
    whole = init_device_mesh("cpu", (4,))
    assert DeviceMesh.from_group(whole.get_group(), "cpu") == whole == DeviceMesh.from_group(dist.group.WORLD, "cpu")
    turned = DeviceMesh("cpu", [3, 2, 1, 0])
    w.same(funcol.all_gather_tensor(torch.tensor([w.rank]), 0, turned), torch.tensor([3, 2, 1, 0]))


@on_ranks
def test_collectives_write_into_tensors(w):
    mine, n = torch.full((n_rows := 2, 3), float(w.rank)), w.size
    whole = torch.cat([torch.full((n_rows, 3), float(r)) for r in range(n)])
    out = torch.empty(n_rows * n, 3)
    assert funcol.all_gather_tensor_inplace(out, mine) is out
    w.same(out, whole)
    parts = [torch.empty(n_rows, 3) for _ in range(n)]
    funcol.all_gather_inplace(parts, mine)
    w.same(torch.cat(parts), whole)
    total = mine.clone()
    funcol.all_reduce_inplace(total)
    w.same(total, torch.full((n_rows, 3), n * (n - 1) / 2))
    share = torch.empty(n_rows, 3)
    funcol.reduce_scatter_tensor_inplace(share, whole)
    w.same(share, n * mine)
    swapped = torch.empty(n, 1)
    funcol.all_to_all_inplace(swapped, torch.full((n, 1), float(w.rank)))
    w.same(swapped, torch.arange(float(n)).view(n, 1))
    with pytest.raises(AssertionError, match="leave async_op out"):
        funcol.all_reduce_inplace(total, async_op=True)


def test_meta_tensors_need_no_world():
    x = torch.empty(2, 3, device="meta")
    assert funcol.all_reduce(x, "sum", "0").shape == funcol.broadcast(x, 0, "0").shape == x.shape
