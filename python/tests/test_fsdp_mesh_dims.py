"""fully_shard of parameters that lie on all axes of a mesh, of which dp_mesh_dims names those of batches."""

import pytest
import torch
from meshtorch import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from meshtorch.fsdp import DataParallelMeshDims, FSDPModule, fully_shard
from torch import nn
from worlds import filled, on_ranks


def new_net():
    return filled(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))


def spread(net, mesh):
    """On every axis of the mesh: split by rows and columns over tp, whole on the others."""
    over_tp = {"0.weight": Shard(0), "0.bias": Shard(0), "2.weight": Shard(1)}

    def partition(name, module, on):
        for key, p in list(module.named_parameters(recurse=False)):
            placement = over_tp.get(f"{name}.{key}", Replicate())
            placements = [placement if axis == "tp" else Replicate() for axis in on.mesh_dim_names]
            module.register_parameter(key, nn.Parameter(distribute_tensor(p.detach(), on, placements)))

    return distribute_module(net, mesh, partition)


@on_ranks
def test_axes_of_batches_may_be_named(w):
    cases = [
        ((2, 2), ("dp", "tp"), DataParallelMeshDims(shard="dp"), [Shard(0), Replicate()]),
        ((2, 2), ("dp", "tp"), DataParallelMeshDims(replicate="dp"), [Shard(0), Replicate()]),
        ((2, 2), ("copies", "shards"), DataParallelMeshDims(shard="shards", replicate="copies"), [Shard(0), Shard(0)]),
        ((4,), ("dp",), DataParallelMeshDims(shard=("dp",)), [Shard(0)]),
    ]
    x = torch.arange(20.0).view(5, 4).sin()
    for shape, names, dims, batch in cases:
        mesh = w.mesh(*shape, names=names)
        net, plain = spread(new_net(), mesh), new_net()
        before = list(net.parameters())
        fully_shard(net, mesh=mesh, dp_mesh_dims=dims)
        assert isinstance(net, FSDPModule) and all(p is old for p, old in zip(net.parameters(), before))
        for p in net.parameters():
            assert p.device_mesh == mesh
            assert not any(p.placements[names.index(axis)].is_replicate() for axis in dims.shard_names)
            assert all(p.placements[names.index(axis)].is_replicate() for axis in dims.replicate_names)
        steps = [torch.optim.SGD(each.parameters(), 0.1) for each in (net, plain)]
        for _ in range(2):
            for each, given in ((net, distribute_tensor(x, mesh, batch)), (plain, x)):
                each.zero_grad()
                loss = each(given).square().mean()
                loss.backward()
            for step in steps:
                step.step()
        for p, expected in zip(net.parameters(), plain.parameters()):
            w.same(p.grad.full_tensor(), expected.grad)
            w.same(p.full_tensor(), expected)


@on_ranks
def test_gradients_of_a_distributed_batch_are_divided_if_asked(w):
    mesh = w.mesh(names=("dp",))
    net, plain = spread(new_net(), mesh), new_net()
    fully_shard(net, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
    net.set_gradient_divide_factor(4.0)
    x = torch.arange(16.0).view(4, 4).sin()
    net(distribute_tensor(x, mesh, [Shard(0)])).sum().backward()
    plain(x).sum().backward()
    for p, expected in zip(net.parameters(), plain.parameters()):
        w.same(p.grad.full_tensor(), expected.grad / 4)


@on_ranks
def test_axes_and_parameters_that_do_not_fit_are_refused(w):
    mesh, dims = w.mesh(2, 2, names=("dp", "tp")), DataParallelMeshDims(shard="dp")
    unfit = [
        (spread(new_net(), mesh), w.mesh(2, 2), dims, ValueError, "a mesh without names"),
        (spread(new_net(), mesh), None, dims, ValueError, "a mesh without names"),
        (spread(new_net(), mesh), mesh, DataParallelMeshDims(shard="rows"), ValueError, "no axis 'rows'"),
        (spread(new_net(), mesh), mesh, DataParallelMeshDims(shard=("dp", "tp")), NotImplementedError, "several axes"),
        (spread(new_net(), mesh), mesh, DataParallelMeshDims(shard="tp"), ValueError, r"split over an axis of batches: 0.weight"),
        (spread(new_net(), mesh["tp"]), mesh, dims, ValueError, r"over the whole mesh: 0.weight is not"),
        (new_net(), mesh, dims, ValueError, r"over the whole mesh: 0.weight is not"),
    ]
    for net, on, named, error, words in unfit:
        layouts = [p.placements if isinstance(p, DTensor) else None for p in net.parameters()]
        with pytest.raises(error, match=words):
            fully_shard(net, mesh=on, dp_mesh_dims=named)
        assert layouts == [p.placements if isinstance(p, DTensor) else None for p in net.parameters()]
    with pytest.raises(ValueError, match="without axes"):
        DataParallelMeshDims()
