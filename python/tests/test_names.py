"""Names that programs take from private modules of PyTorch, and what meets objects of PyTorch's own."""

import pytest
import torch
from meshtorch import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch import functional_collectives as funcol
from meshtorch._dtensor_spec import DTensorSpec, TensorMeta
from meshtorch._random import is_rng_supported_mesh, manual_seed
from meshtorch._redistribute import redistribute_local_tensor
from meshtorch._utils import compute_local_shape_and_global_offset, normalize_to_torch_size
from meshtorch.fsdp import FSDPModule, fully_shard
from meshtorch.placement_types import _StridedShard
from torch import nn
from torch.distributed.device_mesh import init_device_mesh as init_mesh_of_torch
from worlds import on_ranks


@on_ranks
def test_sizes_and_offsets_of_shards(w):
    mesh, part = w.mesh(2, w.size // 2, names=("dp", "tp")), DeviceMesh("cpu", [0, 1])
    numbers = torch.arange(35).view(7, 5)
    for placements in ([Shard(0), Shard(1)], [Shard(1), Replicate()], [Shard(0), Shard(0)], [Replicate()] * 2, [Partial(), Shard(0)]):
        shape, offset = compute_local_shape_and_global_offset((7, 5), mesh, placements)
        if any(p.is_partial() for p in placements):
            placements[0] = Replicate()
        d = distribute_tensor(numbers, mesh, placements, src_data_rank=None)
        assert shape == tuple(d.to_local().shape)
        rows, columns = (slice(begin, begin + size) for begin, size in zip(offset, shape))
        assert d.to_local().tolist() == numbers[rows, columns].tolist()
        assert compute_local_shape_and_global_offset((7, 5), mesh, placements, skip_offset=True) == (shape, ())
    assert compute_local_shape_and_global_offset((), mesh, [Replicate()] * 2) == ((), ())
    if part.get_coordinate() is None:
        assert compute_local_shape_and_global_offset((4,), part, [Shard(0)]) == ((0,), ())
    assert mesh._is_current_rank_part_of_mesh()
    assert part._is_current_rank_part_of_mesh() == (w.rank < 2)


@on_ranks
def test_specs_are_made_and_moved_between(w):
    mesh = w.mesh(2, w.size // 2, names=("dp", "tp"))
    whole = torch.arange(12.0).view(6, 2)
    d = distribute_tensor(whole, mesh, [Shard(0), Replicate()])
    meta = d._spec.tensor_meta
    assert meta == TensorMeta(torch.Size([6, 2]), (2, 1), torch.float32)
    assert (d._spec.num_shards, d._spec.num_shards_map, d._spec.dim_map, d._spec.sums) == (2, [2, 1], [0, -1], [])
    assert d._spec.is_sharded() and not d._spec.is_replicated()
    assert d._spec == DTensorSpec(mesh, (Shard(0), Replicate()), tensor_meta=meta)
    target = DTensorSpec(mesh, (Replicate(), Replicate()), tensor_meta=meta)
    w.same(redistribute_local_tensor(d._local_tensor, d._spec, target), whole)
    strided = DTensorSpec(mesh, (_StridedShard(0, split_factor=2), Shard(0)), tensor_meta=meta)
    assert strided.num_shards_map == [4, 1]
    again = DTensor(d._local_tensor, d._spec, requires_grad=True)
    assert again.is_leaf and again.requires_grad and again._spec == d._spec
    w.same(again.full_tensor(), whole)
    with pytest.raises(ValueError, match="a DTensorSpec without tensor_meta"):
        DTensorSpec(mesh, (Replicate(), Replicate()))
    manual_seed(3, mesh)
    assert is_rng_supported_mesh(mesh)
    assert normalize_to_torch_size(3) == normalize_to_torch_size((3,)) == normalize_to_torch_size([(3,)]) == (3,)


@on_ranks
def test_results_that_are_under_way_are_told(w):
    x = torch.arange(4.0)
    result = funcol.all_reduce(x, "sum", w.mesh())
    assert isinstance(result, (torch.Tensor, funcol.AsyncCollectiveTensor)) and not isinstance(x, funcol.AsyncCollectiveTensor)
    waited = funcol.wait_tensors([result, x])
    assert not any(isinstance(t, funcol.AsyncCollectiveTensor) for t in waited)
    w.same(waited[0], w.size * x)


@on_ranks
def test_a_mesh_of_torch_is_named(w):
    if w.kind == "threads":
        return
    theirs = init_mesh_of_torch("cpu", (w.size,), mesh_dim_names=("dp",))
    words = "a mesh of PyTorch was given where one of meshtorch is needed\n  it is: .*dp.*\n  do: make it with meshtorch.init_device_mesh"
    for call in (
        lambda: DTensor.from_local(torch.ones(2), theirs, [Replicate()]),
        lambda: distribute_tensor(torch.ones(2), theirs, [Replicate()]),
        lambda: fully_shard(nn.Linear(2, 2), mesh=theirs),
    ):
        with pytest.raises(TypeError, match=words):
            call()
    with pytest.raises(TypeError, match="incompatible function arguments"):
        DTensor.from_local(torch.ones(2), 3, [Replicate()])


@on_ranks
def test_a_part_of_a_sharded_module_is_no_group(w):
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    fully_shard(net, mesh=w.mesh())
    assert isinstance(net, FSDPModule) and fully_shard.state(net) is not None
    part = net[:2]
    assert type(part) is nn.Sequential and len(part) == 2 and part[0] is net[0]
    assert fully_shard.state(part) is None and fully_shard.state(net[0]) is None
    assert type(type(net)(nn.ReLU())) is nn.Sequential


@on_ranks
def test_a_gradient_that_shall_be_a_sum_has_equal_terms(w):
    mesh = w.mesh(names=("tp",))
    x = torch.arange(8.0).view(4, 2)
    for placement in (Replicate(), Partial()):
        leaf = x.clone().requires_grad_()
        d = DTensor.from_local(leaf, mesh, [placement], grad_placements=[Partial()])
        (3 * d).full_tensor().sum().backward()
        w.same(leaf.grad, torch.full((4, 2), 3.0 / w.size))  # equal terms of the whole gradient
    weight = distribute_tensor(torch.ones(2, 8), mesh, [Shard(1)])
    leaf = x.clone().requires_grad_()
    (DTensor.from_local(leaf, mesh, [Replicate()], grad_placements=[Partial()]) @ weight).full_tensor().sum().backward()
    w.same(leaf.grad, torch.full((4, 2), 8.0 / w.size))  # what this rank's columns make
    leaf = x.clone().requires_grad_()
    d = DTensor.from_local(leaf, mesh, [Replicate()], grad_placements=[Partial("avg")])
    d.full_tensor().sum().backward()
    w.same(leaf.grad, torch.ones(4, 2))


@on_ranks
def test_indices_are_unravelled(w):
    assert torch.functional.unravel_index is torch.unravel_index  # whatever name a program took it by before
    flat = torch.tensor([[0, 5, 7], [11, 3, 8]])
    for placement in (Replicate(), Shard(0), Shard(1)):
        d = distribute_tensor(flat, w.mesh(), [placement])
        for shape in ((3, 4), (2, 3, 2), 12, torch.Size([12])):
            for found, expected in zip(torch.unravel_index(d, shape), torch.unravel_index(flat, shape), strict=True):
                assert found.placements == (placement,)
                w.same(found.full_tensor(), expected)
    d = distribute_tensor(torch.tensor(7), w.mesh(), [Replicate()])
    w.same(torch.unravel_index(d, (2, 4))[1].full_tensor(), torch.tensor(3))
    with pytest.raises(ValueError, match="shape' cannot have negative values"):
        torch.unravel_index(d, (-2, 4))
