"""Distributed tensors as Python objects: printing, copying, pickling, parameters, state dicts."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import meshtorch
import pytest
import torch
import torch.distributed.tensor
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from meshtorch.parallel import loss_parallel
from torch import nn
from torch.nn import functional as F
from worlds import on_ranks


def test_repr_shows_shape_placements_mesh_and_shard(fake_world):
    mesh = fake_world.mesh()
    x = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)], src_data_rank=None)
    text = (
        "DTensor(shape=(4,), placements=(Shard(dim=0),), device_mesh=DeviceMesh((2), [0, 1], cpu), "
        "local_tensor=tensor([2., 3.])"
    )
    assert repr(x) == text + ")"
    assert repr(x.requires_grad_()) == text + ", requires_grad=True)"
    assert repr(x + 0).endswith("grad_fn=<AddBackward0>)")
    assert repr(nn.Parameter(x.detach())) == "Parameter containing:\n" + text + ", requires_grad=True)"
    assert repr(torch.ones(2)) == "tensor([1., 1.])"
    assert x._spec.tensor_meta.shape == (4,) and x._spec.mesh == mesh and x._spec.placements == (Shard(0),)
    assert repr(x._spec).startswith("DTensor(Float[4], [S(0)] on DeviceMesh")


def test_specs_are_values_that_sets_and_dicts_hold(fake_world):
    mesh = fake_world.mesh()

    def spec(shape, placement, dtype=torch.float32):
        return DTensor.from_local(torch.zeros(shape, dtype=dtype), mesh, [placement])._spec

    split = spec(2, Shard(0))
    assert spec(2, Shard(0)) == split and hash(spec(2, Shard(0))) == hash(split)
    assert len({split, spec(2, Shard(0)), spec(4, Replicate()), spec(3, Shard(0)), spec(2, Shard(0), torch.half)}) == 4


def test_placements_are_values():
    assert Shard(0) == Shard(dim=0) != Shard(1) and hash(Shard(0)) == hash(Shard(0))
    assert Replicate() != Partial() and Partial("max") != Partial() and Shard(0) != "S(0)"
    assert [repr(p) for p in (Shard(1), Replicate(), Partial())] == ["Shard(dim=1)", "Replicate()", "Partial(sum)"]
    assert [str(p) for p in (Shard(1), Replicate(), Partial("avg"))] == ["S(1)", "R", "P(avg)"]
    assert Shard(1).is_shard() and Shard(1).is_shard(1) and not Shard(1).is_shard(0) and not Shard(1).is_replicate()
    assert Partial("max").reduce_op == "max" and Partial("max").is_partial("max") and not Partial().is_partial("max")
    assert isinstance(Shard(0), meshtorch.Placement) and not isinstance(Shard(0), Replicate)
    for placement in (Shard(-1), Replicate(), Partial("min")):
        assert pickle.loads(pickle.dumps(placement)) == placement == copy.deepcopy(placement)


def test_a_shard_tells_the_sizes_and_offsets_of_its_parts():
    from torch.distributed import tensor as theirs

    for size in (0, 1, 7, 8, 10):
        for rank in range(4):
            expected = theirs.Shard.local_shard_size_and_offset(size, 4, rank)
            assert Shard.local_shard_size_and_offset(size, 4, rank) == Shard(0).local_shard_size_and_offset(size, 4, rank) == expected
    assert Partial.ALL_REDUCE_OPS == theirs.Partial.ALL_REDUCE_OPS and Partial.LINEAR_REDUCE_OPS == theirs.Partial.LINEAR_REDUCE_OPS


@on_ranks
def test_copies_keep_the_attributes_that_a_program_set(w):
    mesh = w.mesh()
    x = distribute_tensor(torch.arange(6.0).view(3, 2), mesh, [Shard(0)]).requires_grad_()
    for tensor in (x, torch.nn.Parameter(x.detach())):
        tensor.note = ["mine"]
        (tensor * tensor).sum().backward()
        saved = io.BytesIO()
        torch.save(tensor, saved)
        saved.seek(0)
        sent = pickle.loads(ForkingPickler.dumps(tensor))  # as queues of torch.multiprocessing do
        for twin in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor)), torch.load(saved), sent):
            assert type(twin) is type(tensor) and twin.requires_grad
            assert twin.note == ["mine"] and twin.note is not tensor.note
            w.same(twin.full_tensor(), tensor.full_tensor())
        w.same(copy.deepcopy(tensor).grad.full_tensor(), tensor.grad.full_tensor())


@on_ranks
def test_copies_and_pickles_hold_this_ranks_shard(w):
    mesh = w.mesh(2, 2, names=("dp", "tp"))
    x = distribute_tensor(torch.arange(30.0).view(5, 6), mesh, [Shard(0), Shard(1)]).requires_grad_()
    (x * x).sum().backward()
    for twin in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert isinstance(twin, DTensor) and twin is not x and twin.requires_grad and twin.is_leaf
        assert twin.placements == x.placements and twin.device_mesh == mesh
        assert torch.equal(twin.to_local(), x.to_local())
        assert twin.to_local().data_ptr() != x.to_local().data_ptr() or x.to_local().numel() == 0
    assert torch.equal(copy.deepcopy(x).grad.to_local(), 2 * x.to_local())
    with pytest.raises(RuntimeError, match="can be deep-copied"):
        copy.deepcopy(x + 1)
    file = io.BytesIO()
    torch.save({"x": x, "mesh": mesh.mesh_dim_names}, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True)["x"].to_local(), x.to_local())
    for p in (nn.Parameter(x.detach()), nn.Parameter(x.detach(), requires_grad=False)):
        for twin in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
            assert isinstance(twin, nn.Parameter) and isinstance(twin, DTensor)
            assert twin.requires_grad == p.requires_grad and torch.equal(twin.to_local(), p.to_local())
    shared = [x.detach()] * 2
    twins = copy.deepcopy(shared)
    assert twins[0] is twins[1]
    assert pickle.loads(pickle.dumps(mesh)) == mesh == copy.deepcopy(mesh)


def test_a_pickle_needs_the_ranks_of_its_mesh():
    import worlds

    with worlds.fake_group(4):
        stored = pickle.dumps(meshtorch.zeros(4, device_mesh=meshtorch.init_device_mesh("cpu", (4,))))
    with worlds.fake_group(2), pytest.raises(ValueError, match="rank 2 of a mesh is not in the world of 2 ranks"):
        pickle.loads(stored)


@on_ranks
def test_state_dicts(w):
    mesh = w.mesh()

    def split(name, module, on):
        for p in module.parameters(recurse=False):
            p.data = distribute_tensor(p.detach(), on, [Shard(0)])

    model = distribute_module(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)), mesh, split)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert all(isinstance(value, DTensor) for value in state.values())
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    twin = copy.deepcopy(model)
    for one in (model, twin):
        assert one.load_state_dict(state).missing_keys == []
        assert torch.equal(one[0].weight.to_local(), state["0.weight"].to_local())
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict(state | {"0.bias": meshtorch.zeros(4, device_mesh=mesh)})
    with pytest.raises(RuntimeError, match="While copying the parameter named \"0.weight\""):
        model.load_state_dict(state | {"0.weight": torch.zeros(5, 3)})
    local = {name: value.to_local() for name, value in state.items()}  # each rank its own file
    file = io.BytesIO()
    torch.save(local, file)
    file.seek(0)
    for name, value in torch.load(file, weights_only=True).items():
        assert torch.equal(value, local[name])


@on_ranks
def test_torch_modules_losses_and_optimizers_agree_with_one_device(w):
    mesh = w.mesh()
    torch.manual_seed(1)
    x, y = torch.linspace(-1, 1, 35).view(7, 5).double(), torch.arange(7) % 6
    from worlds import filled

    alone, split = (filled(nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 6)).double()) for _ in range(2))
    split[0].weight.data = distribute_tensor(split[0].weight.data, mesh, [Shard(0)])
    split[2].weight.data = distribute_tensor(split[2].weight.data, mesh, [Shard(0)])
    split = distribute_module(split, mesh)
    assert split[0].weight.placements == split[2].weight.placements == (Shard(0),)
    dx, dy = (distribute_tensor(t, mesh, [Replicate()]) for t in (x, y))
    for optimizer in (torch.optim.SGD, torch.optim.AdamW):
        steps = [optimizer(model.parameters(), lr=0.05) for model in (alone, split)]
        for _ in range(3):
            losses = []
            for model, step, inputs, targets in zip((alone, split), steps, (x, dx), (y, dy)):
                step.zero_grad()
                with loss_parallel():
                    losses.append(F.cross_entropy(model(inputs), targets))
                losses[-1].backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                step.step()
            w.same(losses[1].full_tensor(), losses[0])
    for a, b in zip(alone.parameters(), split.parameters()):
        w.same(b.full_tensor(), a)


@on_ranks
def test_the_weights_of_classes_may_be_plain_in_loss_parallel(w):
    x, y = torch.arange(48.0).view(6, 8).sin(), torch.tensor([1, 3, 2, 5, 0, 7])
    weight = torch.linspace(0.1, 1.0, 8)
    alone, split = x.clone().requires_grad_(), distribute_tensor(x, w.mesh(), [Shard(1)]).requires_grad_()
    expected = F.cross_entropy(alone, y, weight=weight)
    with loss_parallel():
        loss = F.cross_entropy(split, y, weight=weight)
        with pytest.raises(RuntimeError, match="plain tensor beside distributed ones\n  argument weight"):
            F.linear(split, weight[None])
    expected.backward()
    loss.backward()
    w.same(loss.full_tensor(), expected)
    w.same(split.grad.full_tensor(), alone.grad)


@on_ranks
def test_values_are_read_and_written_as_those_of_plain_tensors(w):
    x = distribute_tensor(torch.arange(6.0), w.mesh(), [Shard(0)])
    if w.kind != "fake":
        assert x.sum().item() == 15 and bool((x >= 0).all()) and float(x[5]) == 5
        assert [row.item() for row in x] == list(range(6))
        assert f"{x.sum():.1f}" == "15.0"
    assert len(x) == 6 and x.numel() == 6 and x.device.type == "cpu" and x.type() == "torch.FloatTensor"
    x[1:3] = 0
    w.same(x.full_tensor(), torch.tensor([0.0, 0, 0, 3, 4, 5]))


def test_pytorchs_own_dtensor_works_beside(fake_world):
    theirs_mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    theirs = torch.distributed.tensor.distribute_tensor(
        torch.ones(4, 4), theirs_mesh, [torch.distributed.tensor.Shard(0)], src_data_rank=None
    )
    ours = distribute_tensor(torch.ones(4, 4), fake_world.mesh(), [Shard(0)], src_data_rank=None)
    product = theirs @ theirs.t()
    assert isinstance(product, torch.distributed.tensor.DTensor) and not isinstance(product, DTensor)
    assert isinstance(ours, DTensor) and not isinstance(ours, torch.distributed.tensor.DTensor)
    assert type(theirs.placements[0]) is torch.distributed.tensor.Shard and theirs.to_local().shape == (2, 4)
    assert repr(theirs).startswith("DTensor(local_tensor=")
