"""Names that PyTorch has since 2.14 and 2.15."""

import pytest
import torch
import torch.distributed as dist
from fsdp_models import Net, ones, pair, same_gradients
from meshtorch import DeviceMesh, Partial, Replicate, Shard, linspace, logspace
from meshtorch import functional_collectives as funcol
from meshtorch.fsdp import GradientReductionHandle, MixedPrecisionPolicy, fully_shard
from worlds import filled, on_ranks


@on_ranks
def test_values_that_are_evenly_spaced(w):
    mesh = w.mesh()
    for placement in (Replicate(), Shard(0), Partial()):
        options = {"device_mesh": mesh, "placements": [placement]}
        for steps in (0, 1, 7, 8):
            d = linspace(-1, 2.5, steps, **options)
            assert d.placements == (placement,)
            w.same(d.full_tensor(), torch.linspace(-1, 2.5, steps))
            w.same(logspace(0, 2, steps, 3.0, dtype=torch.float64, **options).full_tensor(), torch.logspace(0, 2, steps, 3.0, dtype=torch.float64))
    d = linspace(torch.tensor(1.0), 2, 5, device_mesh=mesh, requires_grad=True)
    assert d.requires_grad and d.is_leaf and d.placements == (Replicate(),)
    with pytest.raises(NotImplementedError, match="of layout torch.sparse_coo"):
        linspace(0, 1, 3, device_mesh=mesh, layout=torch.sparse_coo)


@on_ranks
def test_reductions_are_given_by_value(w):
    mesh, x = w.mesh(), torch.arange(8.0) + w.rank
    everyone = torch.stack([torch.arange(8.0) + rank for rank in range(w.size)])
    for op, expected in ((dist.ReduceOp.SUM, everyone.sum(0)), (dist.ReduceOp(dist.ReduceOp.MAX), everyone.amax(0))):
        w.same(funcol.all_reduce(x, op, mesh), expected)
        w.same(funcol.all_reduce_coalesced([x], op, mesh)[0], expected)
        w.same(funcol.reduce_scatter_tensor(x, op, 0, mesh), expected.chunk(w.size)[w.rank])
    output = torch.empty(2, 1)
    parts = [torch.full((2, 1), float(10 * w.rank + place)) for place in range(w.size)]
    assert funcol.reduce_scatter_inplace(output, parts, group=mesh) is output
    w.same(output, torch.full((2, 1), float(sum(10 * rank + w.rank for rank in range(w.size)))))
    with pytest.raises(AssertionError, match=r"output: \[2, 1\]\n  tensors: \[\[2\]"):
        funcol.reduce_scatter_inplace(output, [torch.ones(2)] * w.size, group=mesh)


@on_ranks(size=2)
def test_backward_passes_are_ended_by_hand(w):
    for async_op in (False, True):
        net, plain = pair(w)
        net.set_manual_backward_finalization(True)
        for number in range(2):
            net.set_requires_gradient_sync(number == 1)
            net(ones()).square().sum().backward()
            assert all(p.grad is None for p in net.parameters())
            plain(ones()).square().sum().backward()
        handle = net.finalize_backward(async_op=async_op)
        if async_op:
            assert isinstance(handle, GradientReductionHandle)
            handle.wait()
            handle.wait()
        same_gradients(w, net, plain)
        net.set_manual_backward_finalization(False)
        for model in (net, plain):
            model(ones()).sum().backward()
        same_gradients(w, net, plain)
        net.set_keep_unsharded_storage(True)


@on_ranks(size=2)
def test_a_parameter_may_have_a_type_of_its_own(w):
    seen = {}

    def own_type(p):
        return p.dtype if p.dim() == 1 else None

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, param_dtype_override_fn=own_type)
    net = filled(Net(depth=1))
    block = net.blocks[0]
    fully_shard(block, mesh=w.mesh(), mp_policy=policy)
    block.up.register_forward_pre_hook(lambda part, _: seen.update(weight=part.weight.dtype, bias=part.bias.dtype))
    block.up.forward = lambda x: torch.nn.functional.linear(x, block.up.weight, block.up.bias.to(x.dtype))
    block.down.forward = lambda x: torch.nn.functional.linear(x, block.down.weight, block.down.bias.to(x.dtype))
    block(torch.ones(2, 6)).sum().backward()
    assert seen == {"weight": torch.bfloat16, "bias": torch.float32}
    assert {p.grad.dtype for p in block.parameters()} == {torch.float32}
    with pytest.raises(ValueError, match="param_dtype_override_fn gave torch.float16 for weight\n  its type: torch.float32"):
        wrong = MixedPrecisionPolicy(param_dtype=torch.bfloat16, param_dtype_override_fn=lambda p: torch.float16)
        fully_shard(torch.nn.Linear(2, 2), mesh=w.mesh(), mp_policy=wrong)


@on_ranks
def test_groups_have_the_ranks_in_the_order_of_the_mesh(w):
    order = [[2, 0], [3, 1]]
    for options in ({}, {"preserve_rank_order": True}, {"preserve_rank_order": False}):
        mesh = DeviceMesh("cpu", order, mesh_dim_names=("dp", "tp"), **options)
        row, column = next((r, c) for r in range(2) for c in range(2) if order[r][c] == w.rank)
        assert mesh.get_local_rank("tp") == column and mesh.get_local_rank("dp") == row
        gathered = funcol.all_gather_tensor(torch.tensor([w.rank]), 0, (mesh, "tp"))
        w.same(gathered, torch.tensor(order[row]))
