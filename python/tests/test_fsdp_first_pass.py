"""What meshtorch.fsdp finds at the first pass of a module, and functions of modules: behaviours of FSDP2 that a Python user can see."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from fsdp_models import Net, expect_same_training, new_net, ones, sharded
from meshtorch import Shard, distribute_tensor
from meshtorch.fsdp import MixedPrecisionPolicy, fully_shard, replicate
from torch import nn
from worlds import on_ranks


@on_ranks(size=2)
def test_parameters_may_be_replaced_before_the_first_pass(w):
    mesh = w.mesh(names=("dp",))
    net = sharded(new_net(), mesh)
    with torch.no_grad():
        for module in (net.blocks[1].up, net.norm):
            half = module.weight * 0.5
            module.weight = nn.Parameter(half + half)
        # Of another layout, it is brought into that of the group.
        whole = distribute_tensor(new_net().blocks[0].up.weight.detach(), mesh, [Shard(1)])
        net.blocks[0].up.weight = nn.Parameter(whole)
    replaced = [net.blocks[1].up.weight, net.norm.weight, net.blocks[0].up.weight]
    expect_same_training(w, net, w.size, w.rank)
    assert all(any(p is mine for p in net.parameters()) for mine in replaced)
    assert net.blocks[0].up.weight.placements == (Shard(0),)


@on_ranks(size=2)
def test_a_plain_parameter_in_the_place_of_a_shard_is_an_error(w):
    net = sharded(new_net(), w.mesh(names=("dp",)))
    net.blocks[1].up.weight = nn.Parameter(new_net().blocks[1].up.weight.detach())
    with pytest.raises(ValueError, match=r"parameter: up.weight, shape \[5, 6\](.|\n)*new one: shape \[5, 6\], not distributed"):
        net(ones())


@on_ranks(size=2)
def test_parameters_without_memory_are_named_together_and_may_get_it_then(w):
    mesh = w.mesh(names=("dp",))
    with torch.device("meta"):
        net = sharded(Net().double(), mesh)
    net.blocks[0].to_empty(device="cpu")
    with pytest.raises(ValueError) as error:
        net(ones())
    assert "of fully_shard of Block: up.weight, up.bias, down.weight, down.bias\n" in str(error.value)
    assert "of fully_shard of Net: norm.weight, norm.bias\n" in str(error.value)
    assert str(error.value).count("of fully_shard of Block") == 1  # the other one has memory
    net.to_empty(device="cpu")
    for p, q in zip(net.parameters(), new_net().parameters()):
        with torch.no_grad():
            p.copy_(distribute_tensor(q.detach(), mesh, [Shard(0)]))
    expect_same_training(w, net, w.size, w.rank)


@on_ranks(size=2)
def test_derivatives_may_be_taken_forward(w):
    """Products with the derivative, while parameters are gathered inside."""
    if w.kind == "threads":
        return  # levels of dual numbers belong to the process
    mesh, plain = w.mesh(names=("dp",)), new_net()
    x, direction = torch.sin(ones() + w.rank), torch.cos(ones() * 3)
    expected = torch.func.jvp(plain, (x,), (direction,))
    nets = [sharded(new_net(), mesh), sharded(new_net(), mesh, reshard_after_forward=False)]
    for net in [*nets, replicate(new_net(), mesh=mesh)]:
        for actual, wanted in zip(torch.func.jvp(net, (x,), (direction,)), expected):
            w.same(actual, wanted)
        loss = net(x).square().sum()  # and the other way round afterwards
        loss.backward()
        assert all(p.grad is not None for p in net.parameters())


@on_ranks(size=2)
def test_derivatives_may_be_taken_by_dual_numbers(w):
    if w.kind == "threads":
        return  # levels of dual numbers belong to the process
    mesh, x, direction = w.mesh(names=("dp",)), ones(), torch.cos(ones() * 3)
    expected = torch.func.jvp(new_net(), (x,), (direction,))
    net = sharded(new_net(), mesh)
    with forward_ad.dual_level():
        for actual, wanted in zip(forward_ad.unpack_dual(net(forward_ad.make_dual(x, direction))), expected):
            w.same(actual, wanted)


@on_ranks(size=2)
def test_a_first_pass_may_be_inside_a_transform(w):
    """The first pass of a module is inside the transform, of an argument that it does not depend on."""
    if w.kind == "threads":
        return  # levels of dual numbers belong to the process
    mesh = w.mesh(names=("dp",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    first, second = (
        fully_shard(nn.Linear(6, 6), mesh=mesh, mp_policy=policy, reshard_after_forward=False) for _ in range(2)
    )
    hidden = first(torch.ones(6))
    unused = torch.ones(6, dtype=torch.bfloat16, requires_grad=True)
    value, tangent = torch.func.jvp(lambda _: second(hidden), (unused,), (torch.ones(6, dtype=torch.bfloat16),))
    assert value.dtype == torch.bfloat16 and torch.equal(tangent, torch.zeros_like(value))
