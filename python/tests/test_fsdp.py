"""meshtorch.fsdp on torch.nn modules: equal to one device, with the collectives that it promises."""

from copy import deepcopy

import pytest
import torch
from fsdp_models import Block, Net, collectives, expect_same_training, new_net, sharded
from meshtorch import DTensor, Replicate, Shard
from meshtorch.debug import CommDebugMode
from meshtorch.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    no_sync,
    register_fsdp_forward_method,
    replicate,
)
from meshtorch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch import nn
from worlds import filled, on_ranks

@on_ranks(size=2)
def test_fully_shard_trains_as_one_device(w):
    mesh = w.mesh(names=("dp",))
    net = sharded(new_net(), mesh)
    assert isinstance(net, FSDPModule) and isinstance(net, Net) and type(net).__name__ == "FSDPNet"
    assert net.norm.weight.placements == (Shard(0),)
    expect_same_training(w, net, w.size, w.rank)


@on_ranks(size=2)
def test_replicate_trains_as_one_device(w):
    net = replicate(new_net(), mesh=w.mesh(names=("dp",)), bucket_cap_mb=1e-4)
    assert net.norm.weight.placements == (Replicate(),)
    expect_same_training(w, net, w.size, w.rank)


@on_ranks
def test_with_tensor_parallelism(w):
    mesh = w.mesh(2, 2, names=("dp", "tp"))
    net = new_net()
    parallelize_module(net, mesh["tp"], {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()})
    sharded(net, mesh["dp"])
    expect_same_training(w, net, 2, mesh["dp"].get_local_rank())


@on_ranks(size=2)
def test_one_gather_and_one_reduction_for_each_group(w):
    net = sharded(new_net(), w.mesh(names=("dp",)))
    comm = CommDebugMode()
    with comm:
        net(torch.ones(2, 6, dtype=torch.float64)).sum().backward()
    found = comm.get_comm_counts()
    assert found[collectives.all_gather_into_tensor] == 3 + 2
    assert comm.get_total_counts() == 5 + 3


@on_ranks(size=2)
def test_no_sync_accumulates(w):
    plain, x = new_net(), torch.ones(2, 6, dtype=torch.float64)
    for net in (sharded(new_net(), w.mesh(names=("dp",))), replicate(new_net(), mesh=w.mesh(names=("dp",)))):
        plain.zero_grad()
        with no_sync(net):
            net(x).square().sum().backward()
        net(x * 2).square().sum().backward()
        plain(x).square().sum().backward()
        plain(x * 2).square().sum().backward()
        for p, q in zip(net.parameters(), plain.parameters()):
            w.same(p.grad.full_tensor(), q.grad)


@on_ranks(size=2)
def test_mixed_precision(w):
    mesh, net = w.mesh(names=("dp",)), filled(Net())
    types = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    for block in net.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(**types))
    fully_shard(net, mesh=mesh, mp_policy=MixedPrecisionPolicy(**types, output_dtype=torch.float32))
    seen = []
    net.blocks[0].up.register_forward_pre_hook(lambda m, args: seen.append((m.weight.dtype, args[0].dtype)))
    y = net(torch.ones(2, 6))
    assert seen == [(torch.bfloat16, torch.bfloat16)] and y.dtype == torch.float32
    y.sum().backward()
    assert {p.dtype for p in net.parameters()} == {p.grad.dtype for p in net.parameters()} == {torch.float32}


@on_ranks(size=2)
def test_methods_and_errors(w):
    mesh = w.mesh(names=("dp",))
    block = fully_shard(filled(Block(6, 5)), mesh=mesh)
    x = torch.ones(2, 6)
    with pytest.raises(RuntimeError):
        block.half(x)
    register_fsdp_forward_method(block, "half")
    w.same(block.half(x), filled(Block(6, 5)).half(x))
    w.same(block(x, scale=torch.full((1,), 2.0)), filled(Block(6, 5))(x, scale=2.0))
    block.unshard()
    assert not isinstance(block.up.weight, DTensor)
    block.reshard()
    assert isinstance(block.up.weight, DTensor)
    with pytest.raises(AssertionError, match="does not support deepcopy"):
        deepcopy(block)
    with pytest.raises(ValueError, match="do not implement forward"):
        fully_shard(nn.ModuleList([nn.Linear(2, 2)]), mesh=mesh)
    with pytest.raises(ValueError, match="reshard_after_forward = 3 for 2 ranks"):
        fully_shard(nn.Linear(2, 2), mesh=mesh, reshard_after_forward=3)


@on_ranks(size=2)
def test_a_scaler_leaves_out_a_step_whose_gradients_are_infinite_on_one_rank(w):
    net = sharded(new_net(), w.mesh(names=("dp",)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    batch = torch.ones(2, 6, dtype=torch.float64)
    for is_infinite in (True, False):
        before = [p.full_tensor().clone() for p in net.parameters()]
        optimizer.zero_grad()
        loss = net(batch).square().sum()
        scaler.scale(loss * float("inf") if is_infinite and w.rank == w.size - 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if w.kind == "fake":
            continue  # what it gathers is memory that nobody wrote
        is_same = all(torch.equal(p.full_tensor(), q) for p, q in zip(net.parameters(), before))
        assert is_same == is_infinite, "a step with an infinite gradient, of any rank, is left out on all"
        assert scaler.get_scale() == 4.0
