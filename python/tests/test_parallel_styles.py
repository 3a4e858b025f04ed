"""Tensor-parallel styles on torch.nn modules: shapes and collectives that test_tp_style of PyTorch's suite checks."""

from copy import deepcopy

import pytest
import torch
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch.debug import CommDebugMode
from meshtorch.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch import nn
from worlds import filled, on_ranks

collectives = torch.ops.c10d_functional


def expect(comm, **counts):
    """These collectives happened, and no others."""
    found = comm.get_comm_counts()
    assert {name: found[getattr(collectives, name)] for name in counts} == counts
    assert comm.get_total_counts() == sum(counts.values())


@on_ranks
def test_colwise_linear(w):
    mesh, comm = w.mesh(), CommDebugMode()
    x = torch.rand(8, 16, requires_grad=True)
    model = nn.Linear(16, 16)
    with comm:
        y = parallelize_module(deepcopy(model), mesh, ColwiseParallel(), src_data_rank=None)(x)
        assert y.shape == (8, 16 // w.size) and not isinstance(y, DTensor)
        expect(comm)
        y.sum().backward()
        expect(comm, all_reduce=1)
    split = parallelize_module(deepcopy(model), mesh, ColwiseParallel(input_layouts=Shard(0)))
    with comm:
        y = split(x)
        assert y.shape == (8 * w.size, 16 // w.size)
        expect(comm, all_gather_into_tensor=1)
        y.sum().backward()
        expect(comm, all_gather_into_tensor=1, reduce_scatter_tensor=1)


@on_ranks
def test_colwise_embedding_needs_no_collective(w):
    comm = CommDebugMode()
    model = parallelize_module(nn.Embedding(16, 16), w.mesh(), ColwiseParallel())
    with comm:
        y = model(torch.arange(8).reshape(4, 2))
        assert y.shape == (4, 2, 16 // w.size)
        y.sum().backward()
        expect(comm)


@on_ranks
def test_rowwise_linear(w):
    mesh, comm = w.mesh(), CommDebugMode()
    x = torch.rand(8, 16 // w.size, requires_grad=True)
    model = nn.Linear(16, 16)
    reduced = parallelize_module(deepcopy(model), mesh, RowwiseParallel())
    with comm:
        y = reduced(x)
        assert y.shape == (8, 16)
        expect(comm, all_reduce=1)
        y.sum().backward()
        expect(comm, all_reduce=1)
    scattered = parallelize_module(deepcopy(model), mesh, RowwiseParallel(output_layouts=Shard(0)))
    with comm:
        y = scattered(x)
        assert y.shape == (8 // w.size, 16)
        expect(comm, reduce_scatter_tensor=1)
        y.sum().backward()
        expect(comm, reduce_scatter_tensor=1, all_gather_into_tensor=1)


@on_ranks
def test_rowwise_embedding(w):
    mesh, comm = w.mesh(), CommDebugMode()
    model = nn.Embedding(16, 16)
    reduced = parallelize_module(deepcopy(model), mesh, RowwiseParallel(input_layouts=Replicate()))
    indices = torch.arange(8)
    with comm:
        y = reduced(indices.reshape(4, 2))
        assert y.shape == (4, 2, 16)
        expect(comm, all_reduce=1)
        y.sum().backward()
        expect(comm, all_reduce=1)
    style = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    scattered = parallelize_module(deepcopy(model), mesh, style)
    with comm:
        y = scattered(indices)
        assert y.shape == (8, 16 // w.size)
        expect(comm, reduce_scatter_tensor=1)
        y.sum().backward()
        expect(comm, reduce_scatter_tensor=1, all_gather_into_tensor=1)


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, y):
        return self.linear(x) + y


@on_ranks
def test_prepare_module_input(w):
    mesh = w.mesh()
    gather = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
    w.same(parallelize_module(nn.Identity(), mesh, gather)(torch.ones(2, 16)).full_tensor(), torch.ones(2 * w.size, 16))

    with pytest.raises(AssertionError, match="input_layouts and desired_input_layouts should have same length!"):
        PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=(Replicate(), None))
    with pytest.raises(AssertionError, match="desired module inputs should not be None!"):
        PrepareModuleInput(input_layouts=Shard(0))

    model, inputs = Sum(), (torch.randn(2, 8), torch.ones(w.size * 2, 8 // w.size))
    parallelize_module(model.linear, mesh, ColwiseParallel())
    parallelize_module(model, mesh, gather)
    with pytest.raises(ValueError, match="module inputs and input_layouts should have same length!"):
        model(*inputs)

    model = Sum()
    style = PrepareModuleInput(input_layouts=(Shard(0), None), desired_input_layouts=(Replicate(), None))
    parallelize_module(model.linear, mesh, ColwiseParallel())
    assert parallelize_module(model, mesh, style)(*inputs).shape == (w.size * 2, 8 // w.size)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, *, y, z=2):
        return self.linear(x) + y + z


class OnlyNamed(Named):
    def forward(self, *, x, y=2, z=None):
        return self.linear(x) + y + z


@on_ranks
def test_prepare_module_input_by_name(w):
    mesh, comm = w.mesh(), CommDebugMode()

    def prepared(model, *names):
        parallelize_module(model.linear, mesh, ColwiseParallel(use_local_output=False))
        style = PrepareModuleInput(
            input_kwarg_layouts={name: Shard(0) for name in names},
            desired_input_kwarg_layouts={name: Replicate() for name in names},
        )
        return parallelize_module(model, mesh, style)

    named = prepared(Named(), "y")
    with comm:
        y = named(torch.randn(w.size, 8), y=torch.ones(1, 8))
    assert comm.get_total_counts() == 1 and y.shape == (w.size, 8)
    only_named = prepared(OnlyNamed(), "x", "z")
    for x in (torch.randn(1, 8), DTensor.from_local(torch.randn(1, 8), mesh, [Shard(0)])):
        with comm:
            y = only_named(x=x, z=torch.ones(1, 8))
        assert comm.get_total_counts() == 2 and y.shape == (w.size, 8)


@on_ranks
def test_prepare_module_output(w):
    mesh = w.mesh()
    style = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
    w.same(parallelize_module(nn.Identity(), mesh, style)(torch.ones(8, 16)), torch.ones(8 // w.size, 16))
    both = PrepareModuleInputOutput(
        input_layouts=Shard(0),
        desired_input_layouts=Replicate(),
        output_layouts=Replicate(),
        desired_output_layouts=Shard(1),
    )
    w.same(parallelize_module(nn.Identity(), mesh, both)(torch.ones(2, 16)), torch.ones(2 * w.size, 16 // w.size))


@on_ranks
def test_sequence_parallel(w):
    mesh, comm = w.mesh(), CommDebugMode()
    batch, sequence, width = 2, 3 * w.size, 8
    for norm in (nn.LayerNorm(width), nn.RMSNorm(width)):
        whole = torch.arange(float(batch * sequence * width)).view(batch, sequence, width).cos()
        model = parallelize_module(deepcopy(norm), mesh, SequenceParallel())
        with comm:
            y = model(whole.chunk(w.size, 1)[w.rank].contiguous())
            expect(comm)
            assert isinstance(y, DTensor) and y.placements == (Shard(1),) and y.shape == whole.shape
            w.same(y.full_tensor(), norm(whole))
        with comm:
            y.sum().backward()
            expect(comm)
        assert model.weight.grad.placements == (Partial(),)
        replicated = distribute_tensor(whole, mesh, [Replicate()], src_data_rank=None)
        assert model(replicated).placements == (Shard(1),)
    local = parallelize_module(nn.LayerNorm(width), mesh, SequenceParallel(use_local_output=True))
    assert not isinstance(local(whole), DTensor)
    with pytest.raises(ValueError, match="expecting input of .* to be a torch.Tensor or DTensor"):
        local([whole])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(6, 10), "down": nn.Linear(10, 6)}) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer["down"](layer["up"](x).relu())
        return x


@on_ranks
def test_a_plan_by_patterns_on_the_axis_tp(w):
    net, mesh = filled(Net().double()), w.mesh(1, w.size, names=("dp", "tp"))
    x = torch.linspace(-1, 1, 24, dtype=torch.double).view(4, 6)
    expected = net(x)
    expected.sum().backward()
    gradient = net.layers[1]["up"].weight.grad.clone()
    net.zero_grad()
    plan = {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
    with pytest.warns(UserWarning, match="'layers.*.gate' matches no module") if w.kind != "threads" else mesh:
        parallelize_module(net, mesh, plan | ({"layers.*.gate": ColwiseParallel()} if w.kind != "threads" else {}))
    assert net.layers[0]["up"].weight.placements == (Shard(0),)  # 10 outputs over 4 ranks: unequal shards
    y = net(x)
    w.same(y, expected)
    y.sum().backward()
    w.same(net.layers[1]["up"].weight.grad.full_tensor(), gradient)


@on_ranks
def test_plans_that_cannot_be_applied_are_errors(w):
    mesh = w.mesh()
    with pytest.raises(NotImplementedError, match="only support nn.Linear and nn.Embedding"):
        parallelize_module(nn.LayerNorm(4), mesh, ColwiseParallel())
    with pytest.raises(NotImplementedError, match="convolution with groups cannot be split"):
        parallelize_module(nn.Conv2d(4, 4, 3, groups=2), mesh, RowwiseParallel())
    with pytest.raises(TypeError, match="give a ParallelStyle, or a dict"):
        parallelize_module(nn.Linear(4, 4), mesh, [ColwiseParallel()])
    with pytest.raises(ValueError, match="works on one axis, the mesh has 2"):
        parallelize_module(nn.Linear(4, 4), w.mesh(2, 2), ColwiseParallel())


class Doubled(ParallelStyle):
    def _apply(self, module, device_mesh):
        module.register_forward_hook(lambda part, inputs, output: output * 2)
        return module


def test_a_user_derives_a_style(fake_world):
    model = parallelize_module(nn.Identity(), fake_world.mesh(), Doubled())
    assert model(torch.ones(1)).item() == 2


class Noting(ParallelStyle):
    def _apply(self, module, device_mesh):
        self.mesh = device_mesh
        return module


class NotingColumns(ColwiseParallel):
    def _apply(self, module, device_mesh):
        self.mesh = device_mesh
        return super()._apply(module, device_mesh)


@on_ranks
def test_a_style_of_the_program_gets_the_mesh_that_was_given(w):
    for names in (("dp", "tp"), ("ep", "cp"), None):
        mesh, own, columns = w.mesh(2, 2, names=names), Noting(), NotingColumns()
        parallelize_module(nn.Linear(4, 4), mesh, own)
        assert own.mesh == mesh
        if names and "tp" in names:
            linear = parallelize_module(nn.Linear(4, 4), mesh, columns)
            assert columns.mesh == mesh and linear.weight.device_mesh == mesh["tp"]
            parallelize_module(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), mesh, {"0": own, "1": columns})
            assert own.mesh == columns.mesh == mesh


def test_a_style_that_is_none_is_named(fake_world):
    with pytest.raises(TypeError, match="the style of '0' is 'colwise', of type str"):
        parallelize_module(nn.Sequential(nn.Linear(4, 4)), fake_world.mesh(), {"0": "colwise"})


@on_ranks
def test_saved_inputs_may_be_kept_in_parts(w):
    from meshtorch.parallel.api import parallelize_module as documented
    from meshtorch.parallel.input_reshard import input_reshard

    mesh, x = w.mesh(), torch.arange(40.0).view(10, 4).sin()
    plain = filled(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))
    split = documented(deepcopy(plain), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert input_reshard(split, mesh) is split and not split._forward_pre_hooks
    assert input_reshard(split, mesh, 0) is split
    results = []
    for net in (split, plain):
        given = x.clone().requires_grad_()
        output = net(given)
        output.square().sum().backward()
        results.append((output, given.grad, *(p.grad for p in net.parameters())))
    for ours, expected in zip(*results):
        w.same(ours.full_tensor() if isinstance(ours, DTensor) else ours, expected)
    with pytest.raises(RuntimeError):
        split(torch.ones(3, 3))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None  # a forward that fails leaves no scope behind
    whole = nn.SiLU()
    comm, big = CommDebugMode(), torch.ones(10, 4, requires_grad=True)
    output = input_reshard(whole, mesh, 0)(big)
    with comm:
        output.sum().backward()
    expect(comm, all_gather_into_tensor=1)


def test_a_style_is_printed_as_it_is_written(fake_world):
    assert repr(ColwiseParallel()) == "ColwiseParallel(use_local_output=True)"
    style = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False)
    assert repr(style) == "RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(dim=1), use_local_output=False)"
