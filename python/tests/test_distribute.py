"""distribute_tensor, distribute_module, from_local: what test_api of PyTorch's suite checks, and more."""

import weakref

import meshtorch
import pytest
import torch
from meshtorch import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from meshtorch.parallel import ColwiseParallel, parallelize_module
from torch import nn
from worlds import on_ranks


class Mlp(nn.Module):
    def __init__(self, features, hidden, device="cpu"):
        super().__init__()
        self.seq = nn.Sequential(
            nn.Linear(features, hidden, device=device), nn.ReLU(), nn.Linear(hidden, features, device=device)
        )

    def forward(self, x):
        return self.seq(x)


@on_ranks
def test_a_leaf_stays_a_leaf_and_negative_dims_count_from_the_end(w):
    mesh = DeviceMesh("cpu", list(range(w.size)))
    for requires_grad in (True, False):
        whole = torch.randn(3 * w.size, 3, requires_grad=requires_grad)
        split = distribute_tensor(whole, mesh, [Shard(0)])
        assert split.size() == torch.Size([3 * w.size, 3])
        assert split.to_local().size() == torch.Size([3, 3])
        assert split.requires_grad == requires_grad and split.is_leaf
    assert distribute_tensor(torch.randn(3, 3 * w.size), mesh, [Shard(-1)]).placements[0].dim == 1


@on_ranks
def test_shards_that_do_not_divide_are_those_of_chunk(w):
    mesh = w.mesh()
    for extra in (1, 2):
        for dim in range(3):
            shape = [3, 3, 3]
            shape[dim] = 3 * w.size + extra
            whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
            split = distribute_tensor(whole, mesh, [Shard(dim)])
            assert split.size() == torch.Size(shape)
            w.same(split.to_local(), whole.chunk(w.size, dim)[w.rank])
    one_each = distribute_tensor(torch.arange(2.0), mesh, [Shard(0)])
    assert one_each.to_local().numel() == (1 if w.rank < 2 else 0)
    assert (one_each + 1).to_local().shape == one_each.to_local().shape


@on_ranks
def test_wrong_calls_raise_what_pytorch_raises(w):
    mesh = DeviceMesh("cpu", torch.arange(w.size).reshape(2, 2))
    whole = torch.randn(12, 12)
    with pytest.raises(ValueError, match="must have the same length"):
        distribute_tensor(whole, mesh, [Shard(0)])
    with pytest.raises(RuntimeError, match="distribute leaf tensor"):
        distribute_tensor(torch.randn(12, 12, requires_grad=True) + 2, mesh, [Shard(0)])
    split = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    with pytest.raises(ValueError, match="to a different device mesh"):
        distribute_tensor(split, DeviceMesh("cpu", torch.arange(w.size)), [Shard(0)])
    with pytest.raises(ValueError, match="to a different placements"):
        distribute_tensor(split, mesh, [Shard(0), Replicate()])
    with pytest.raises(RuntimeError, match="only accepts torch.Tensor"):
        DTensor.from_local(split, mesh, [Replicate(), Replicate()])
    with pytest.raises(RuntimeError, match="placements is needed for redistribute"):
        split.redistribute()
    with pytest.raises(RuntimeError, match="No device mesh is currently active"):
        DTensor.from_local(whole)


@on_ranks
def test_what_is_not_dense_is_refused(w):
    sparse = torch.eye(4).to_sparse()
    for call in (DTensor.from_local, distribute_tensor):
        with pytest.raises(NotImplementedError, match="(?s)are dense, and this one is not.*layout Sparse.*do: give to_dense"):
            call(sparse, w.mesh(), [Shard(0)])


@on_ranks
def test_input_fn_and_output_fn_run_at_the_edges_of_the_module(w):
    mesh = w.mesh()

    def split_input(module, inputs, on):
        return DTensor.from_local(inputs[0], on, [Shard(0)])

    def local_output(module, outputs, on):
        assert isinstance(outputs, DTensor)
        return outputs.to_local()

    model = distribute_module(Mlp(20, 1), mesh, input_fn=split_input, output_fn=local_output)
    output = model(torch.randn(5, 20))
    assert isinstance(output, torch.Tensor) and not isinstance(output, DTensor)

    model = distribute_module(
        Mlp(10, 10), mesh, input_fn=lambda module, inputs, on: DTensor.from_local(inputs[0], on, [Replicate()])
    )
    model(torch.randn(10, 10, requires_grad=True)).sum().backward()
    gradient = next(model.parameters()).grad
    assert isinstance(gradient, DTensor) and isinstance(gradient.placements[0], Replicate)
    with pytest.raises(RuntimeError, match="should only be called once"):
        distribute_module(model, mesh)
    with pytest.raises(ValueError, match="input_fn should take in 3 arguments, but got 1"):
        distribute_module(Mlp(2, 2), mesh, input_fn=lambda inputs: inputs)


def warn_of_two_arguments(w):
    mesh = w.mesh()
    with pytest.warns(FutureWarning, match="Deprecating"):
        model = distribute_module(
            Mlp(20, 1),
            mesh,
            input_fn=lambda inputs, on: DTensor.from_local(inputs[0], on, [Shard(0)]),
            output_fn=lambda outputs, on: outputs.to_local(),
        )
    assert not isinstance(model(torch.randn(5, 20)), DTensor)


def test_functions_without_a_module_are_deprecated(ranks):
    if ranks.kind == "threads":
        pytest.skip("Python's warnings are those of all threads")
    ranks(warn_of_two_arguments)


@on_ranks
def test_casts_and_autocast_reach_the_shards(w):
    mesh = w.mesh()
    for tensor in (
        DTensor.from_local(torch.rand(10), mesh, [Replicate()]),
        distribute_tensor(torch.rand(10), mesh, [Shard(0)]),
    ):
        half = tensor.to(torch.bfloat16)
        assert half.dtype == half._local_tensor.dtype == torch.bfloat16
    model = distribute_module(Mlp(10, 10), mesh).to(torch.bfloat16)
    weight = model.seq[0].weight
    assert weight.dtype == weight._local_tensor.dtype == torch.bfloat16
    model = distribute_module(Mlp(10, 10), mesh)
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        assert model(distribute_tensor(torch.rand(10), mesh, [Replicate()])).dtype == torch.bfloat16


@on_ranks
def test_a_model_on_meta_is_made_shard_by_shard(w):
    mesh = w.mesh()

    def split(name, module, on):
        for key, parameter in list(module._parameters.items()):
            placed = torch.empty_like(distribute_tensor(parameter, on, [Shard(0)]), device=on.device_type)
            module.register_parameter(key, nn.Parameter(placed))

    model = distribute_module(Mlp(5 * w.size, 20, device="meta"), mesh, split)
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor) and isinstance(parameter, nn.Parameter)
        assert not parameter.is_meta and parameter.device.type == "cpu"
        assert parameter.to_local().shape[0] == parameter.shape[0] // w.size


@on_ranks
def test_parameters_change_in_place_so_that_optimizers_see_them(w):
    mesh = w.mesh()
    linear = nn.Linear(4, 4)
    weight = linear.weight
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    distribute_module(linear, mesh)
    assert linear.weight is weight and isinstance(weight, DTensor) and weight.is_leaf
    before = weight.full_tensor().clone()
    linear(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])).sum().backward()
    optimizer.step()
    w.same(weight.full_tensor(), before - 0.1 * 4)


@on_ranks
def test_from_local_and_redistribute_take_what_pytorch_takes(w):
    mesh = w.mesh(2, 2, names=("dp", "tp"))
    x = DTensor.from_local(torch.full((2, 3), float(w.rank)), mesh, [Shard(0), Partial()])
    assert x.shape == (4, 3)
    w.same(x.full_tensor(), torch.tensor([[1.0] * 3] * 2 + [[5.0] * 3] * 2))
    assert x.redistribute(placements=[Replicate(), Shard(1)]).placements == (Replicate(), Shard(1))
    assert x.redistribute(mesh, [Shard(0), Shard(1)], forward_dtype=torch.float64).dtype == torch.float64
    uneven = torch.ones(3 if w.rank < 3 else 1)
    flat = DeviceMesh("cpu", list(range(w.size)))
    assert DTensor.from_local(uneven, flat, [Shard(0)], shape=torch.Size([10]), stride=(1,)).shape == (10,)
    if w.kind != "fake":  # sizes are exchanged
        assert DTensor.from_local(uneven, flat, [Shard(0)], run_check=True).shape == (10,)
    with mesh:
        assert DTensor.from_local(torch.ones(2)).placements == (Replicate(), Replicate())
        assert distribute_tensor(torch.ones(2)).device_mesh == mesh


@on_ranks
def test_half_a_shape_is_refused_and_any_layout_may_become_pending(w):
    mesh = w.mesh(2, 2)
    uneven = torch.ones(3 if w.rank < 3 else 1)
    flat = DeviceMesh("cpu", list(range(w.size)))
    for half in ({"shape": (10,)}, {"stride": (1,)}):
        with pytest.raises(RuntimeError, match="Please pass both shape and stride at the same time"):
            DTensor.from_local(uneven, flat, [Shard(0)], **half)
    x = DTensor.from_local(torch.ones(4, 4), mesh, [Shard(0), Partial()])
    assert x.redistribute(mesh, [Replicate(), Partial()]).placements == (Replicate(), Partial())
    assert x.redistribute(placements=[Shard(1), Partial()]).placements == (Shard(1), Partial())
    pending = x.redistribute(mesh, [Partial(), Partial()])  # more than PyTorch allows
    assert pending.placements == (Partial(), Partial())
    w.same(pending.full_tensor(), x.full_tensor())


@on_ranks
def test_a_check_of_from_local_is_a_value_error_whatever_the_ranks_disagree_on(w):
    if w.kind != "threads":
        return  # processes serve other tests too, and every group of theirs would tell it once
    mesh = w.mesh()
    mine = torch.ones(3, 3, dtype=torch.float64 if w.rank == 0 else torch.float32)
    for _ in range(2):
        with pytest.raises(ValueError, match="the shards have different types"):
            DTensor.from_local(mine, mesh, [Shard(0)], run_check=True)
    DTensor.from_local(mine, mesh, [Shard(0)])  # nobody looks yet
    with pytest.raises(ValueError, match="disagree on a collective\n  rank 0: .* after from_local\\(Double"):
        DTensor.from_local(torch.ones(3, 3), mesh, [Shard(0)], run_check=True)
    assert DTensor.from_local(torch.ones(3, 3), mesh, [Shard(0)], run_check=True).shape == (3 * w.size, 3)


@on_ranks
def test_a_shard_without_gradients_is_one_object_while_somebody_holds_it(w):
    x = distribute_tensor(torch.arange(8.0).view(4, 2), w.mesh(), [Shard(0)], src_data_rank=None).requires_grad_()
    assert x.to_local() is not x._local_tensor and x.to_local().grad_fn is not None
    with torch.no_grad():
        held = x.to_local()
        assert held is x.to_local() is x._local_tensor
        held.add_(1)
        w.same(x.full_tensor(), torch.arange(8.0).view(4, 2) + 1)
        held.requires_grad_()  # the holder's own affair
        assert x._local_tensor is not held and not x._local_tensor.requires_grad
        other = x.to_local()
        other.t_()
        assert x.to_local().shape == (1, 2) and x.shape == (4, 2)
    name = weakref.ref(x._local_tensor)
    assert name() is None  # nobody holds it


@on_ranks
def test_factories_make_one_global_tensor_for_any_placements(w):
    mesh = w.mesh()
    for factory, value in ((meshtorch.zeros, 0.0), (meshtorch.ones, 1.0)):
        made = factory(5, 2, device_mesh=mesh, placements=[Shard(0)], dtype=torch.float64, requires_grad=True)
        assert made.is_leaf and made.requires_grad
        w.same(made.full_tensor(), torch.full((5, 2), value, dtype=torch.float64))
    w.same(meshtorch.full((5, 2), 7, device_mesh=mesh).full_tensor(), torch.full((5, 2), 7.0))
    assert meshtorch.empty((5, 2), device_mesh=mesh, placements=[Shard(1)]).shape == (5, 2)
    with pytest.raises(NotImplementedError, match="use torch.strided"):
        meshtorch.zeros(2, device_mesh=mesh, layout=torch.sparse_coo)
    drawn = []
    for placements in ([Shard(0)], [Shard(1)], [Replicate()]):
        meshtorch.manual_seed(7)
        drawn.append([f(5, 3, device_mesh=mesh, placements=placements) for f in (meshtorch.rand, meshtorch.randn)])
    for other in drawn[1:]:
        for a, b in zip(drawn[0], other):
            w.same(a.full_tensor(), b.full_tensor(), rtol=0, atol=0)


@on_ranks
def test_distribute_module_adds_an_axis_to_what_another_one_splits(w):
    mesh = w.mesh(2, 2, names=("dp", "tp"))
    model = Mlp(4, 8)
    whole = {name: p.detach().clone() for name, p in model.named_parameters()}
    parallelize_module(model, mesh["tp"], {"seq.0": ColwiseParallel()})
    distribute_module(model, mesh["dp"])
    for name, p in model.named_parameters():
        split = Shard(0) if name.startswith("seq.0") else Replicate()
        expected = (Replicate(), split) if name.startswith("seq.0") else (Replicate(),)
        assert p.placements == expected, name
        w.same(p.full_tensor(), whole[name])
    with pytest.raises(ValueError, match="cannot be replicated over another"):
        distribute_module(model.seq[2], DeviceMesh("cpu", list(range(w.size))))


@on_ranks
def test_a_plain_gradient_of_redistribute_is_an_error(w):
    x = distribute_tensor(torch.ones(4, 4), w.mesh(), [Shard(0)]).requires_grad_()
    with pytest.raises(ValueError, match="a plain tensor was taken for a distributed one"):
        x.redistribute(placements=[Replicate()]).backward(torch.ones(4, 4))


@on_ranks
def test_gradients_that_are_given_to_backward_are_distributed_or_one_number(w):
    p = distribute_tensor(torch.ones(4, 4), w.mesh(), [Shard(0)]).requires_grad_()
    for loss in (lambda: p.sum(), lambda: (p * 2).sum(), lambda: p.mean()):
        p.grad = None
        loss().backward(torch.tensor(3.0))
        assert isinstance(p.grad, DTensor)
    (gradient,) = torch.autograd.grad(p.sum(), p, torch.tensor(2.0))
    w.same(gradient.full_tensor(), torch.full((4, 4), 2.0))
    for give in ((p @ p).backward, (p * 2).backward, lambda g: torch.autograd.grad(p * 2, p, g)):
        with pytest.raises(ValueError, match="a plain tensor was taken for a distributed one"):
            give(torch.ones(4, 4))
    with meshtorch.implicit_replication():
        (gradient,) = torch.autograd.grad(p * 2, p, torch.ones(4, 4))
    w.same(gradient.full_tensor(), torch.full((4, 4), 2.0))
    plain = torch.ones(3, requires_grad=True)
    (plain * 2).backward(torch.ones(3))
    w.same(plain.grad, torch.full((3,), 2.0))
