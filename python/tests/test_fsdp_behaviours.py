"""Behaviours of FSDP2 that a Python user can see; docs/pytorch_tests.md has the table."""

import pytest
import torch
from fsdp_models import (
    Block,
    Net,
    collectives,
    expect_same_gradients,
    expect_same_training,
    new_net,
    ones,
    pair,
    same_gradients,
    sharded,
)
from meshtorch import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from meshtorch.debug import CommDebugMode, estimate_memory
from meshtorch.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    fully_shard,
    register_fsdp_forward_method,
    replicate,
    share_comm_ctx,
)
from torch import nn
from torch.utils.checkpoint import checkpoint
from worlds import filled, on_ranks


# Gathering when asked, and ahead of time.


@on_ranks(size=2)
def test_unshard_begins_to_gather_and_forward_takes_it(w):
    net, plain = pair(w)
    handles = [block.unshard(async_op=True) for block in net.blocks]
    assert all(isinstance(block.up.weight, DTensor) for block in net.blocks)
    handles[0].wait()
    assert not isinstance(net.blocks[0].up.weight, DTensor)
    assert net.unshard() is None
    comm = CommDebugMode()
    with comm:  # forward takes what is under way
        loss = net(ones()).sum()
    assert comm.get_total_counts() == 0
    loss.backward()
    plain(ones()).sum().backward()
    same_gradients(w, net, plain)


@on_ranks(size=2)
def test_modules_to_prefetch_may_be_named(w):
    net, plain = pair(w)
    net.set_modules_to_forward_prefetch(list(net.blocks))
    net.set_modules_to_backward_prefetch(list(net.blocks))
    net.set_is_last_backward(True)
    net.set_post_optim_event(None)
    share_comm_ctx([net, *net.blocks])
    with pytest.raises(ValueError, match="not one of fully_shard: Linear"):
        net.set_modules_to_forward_prefetch([nn.Linear(2, 2)])
    expect_same_gradients(w, net, plain)
    for name in ("set_custom_all_gather", "set_custom_reduce_scatter", "set_symm_mem_for_comm"):
        with pytest.raises(NotImplementedError, match="meshtorch's own collectives"):
            getattr(net, name)(None)


@on_ranks(size=2)
def test_parts_may_run_without_the_whole(w):
    """Layers that run before the whole does are roots of their own."""
    net, plain = pair(w)
    for model in (net, plain):
        model.blocks[0](ones()).sum().backward()
        (model(ones()).sum() + model.blocks[1](ones()).sum()).backward()
    same_gradients(w, net, plain)


@on_ranks(size=2)
def test_forward_runs_several_times_before_backward(w):
    net, plain = pair(w)
    with torch.no_grad():
        w.same(net(ones()), plain(ones()))
    for model in (net, plain):
        first, second = model(ones()), model(2 * ones())
        (first * second).sum().backward()
    same_gradients(w, net, plain)
    assert all(isinstance(p, DTensor) for p in net.parameters())


# What is kept after forward and backward.


@on_ranks(size=2)
def test_what_is_kept_after_forward_and_backward(w):
    net = sharded(new_net(), w.mesh(names=("dp",)), reshard_after_forward=False)
    loss = net(ones()).sum()
    assert not any(isinstance(p, DTensor) for p in net.parameters())
    loss.backward()
    assert all(isinstance(p, DTensor) for p in net.parameters())
    net.set_reshard_after_forward(True)
    net(ones())
    assert all(isinstance(p, DTensor) for p in net.parameters())
    with pytest.raises(ValueError, match="give True or False"):
        net.set_reshard_after_forward(2)
    net.set_reshard_after_backward(False)
    net(ones()).sum().backward()
    assert not isinstance(net.norm.weight, DTensor)
    net.set_reshard_after_backward(True)
    for block in (*net.blocks, net):
        block.reshard()
    assert all(isinstance(p, DTensor) for p in net.parameters())


@on_ranks(size=4)
def test_parts_of_fewer_ranks_are_kept_between_forward_and_backward(w):
    net = sharded(new_net(), w.mesh(names=("dp",)), reshard_after_forward=2)
    expect_same_training(w, net, w.size, w.rank)


@on_ranks(size=2)
def test_types_may_change_after_sharding(w):
    net = sharded(filled(Net()), w.mesh(names=("dp",)))
    net.to(torch.float64)
    assert {p.dtype for p in net.parameters()} == {torch.float64}
    plain = filled(Net()).double()
    expect_same_gradients(w, net, plain)


# What modules and parameters are taken.


class Listed(nn.ModuleList):
    def forward(self, x):
        for block in self:
            x = block(x)
        return x


@on_ranks(size=2)
def test_containers_with_forward_and_lists_of_modules(w):
    mesh = w.mesh(names=("dp",))
    blocks = fully_shard(filled(Listed([Block(6, 5), Block(6, 5)])).double(), mesh=mesh)
    assert isinstance(blocks, FSDPModule) and type(blocks[0]) is Block
    with pytest.raises(AssertionError, match="called on this module before: FSDPListed"):
        fully_shard(blocks, mesh=mesh)
    blocks(ones()).sum().backward()

    # Several modules, one group.
    net, plain = new_net(), new_net()
    assert fully_shard([net.blocks[0], net.blocks[1]], mesh=mesh) == [net.blocks[0], net.blocks[1]]
    fully_shard(net, mesh=mesh)
    comm = CommDebugMode()
    with comm:
        net(ones()).sum().backward()
    assert comm.get_comm_counts()[collectives.all_gather_into_tensor] == 2 + 1
    plain(ones()).sum().backward()
    same_gradients(w, net, plain)
    for model in (net, plain):  # one of them is not used
        model.zero_grad()
        for _ in range(2):
            model.blocks[0](ones()).sum().backward()
    same_gradients(w, net, plain)
    assert isinstance(net.blocks[1].up.weight, DTensor)


@on_ranks(size=2)
def test_ignored_parameters_stay_plain(w):
    mesh, net, plain = w.mesh(names=("dp",)), new_net(), new_net()
    ignored = set(net.blocks[1].parameters())
    fully_shard(net, mesh=mesh, ignored_params=ignored)
    assert not any(isinstance(p, DTensor) for p in ignored)
    assert isinstance(net.norm.weight, DTensor)
    for model in (net, plain):
        model(ones()).sum().backward()
    w.same(net.blocks[1].up.weight.grad, plain.blocks[1].up.weight.grad)
    w.same(net.norm.weight.grad.full_tensor(), plain.norm.weight.grad)


class Odd(nn.Module):
    """A parameter without dims, one of integers, one that is not contiguous, one tied to another."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.steps = nn.Parameter(torch.arange(6), requires_grad=False)
        self.slanted = nn.Parameter(torch.linspace(0, 1, 30, dtype=torch.float64).view(5, 6).t())
        self.first = nn.Linear(6, 6, bias=False).double()
        self.second = nn.Linear(6, 6).double()
        self.second.weight = self.first.weight

    def forward(self, x):
        return (self.second(torch.tanh(self.first(x))) * self.scale + self.steps) @ self.slanted


@on_ranks(size=2)
def test_odd_parameters(w):
    torch.manual_seed(3)
    plain = Odd()
    net = Odd()
    net.load_state_dict(plain.state_dict())
    fully_shard(net, mesh=w.mesh(names=("dp",)))
    assert net.second.weight is net.first.weight and net.scale.placements == (Replicate(),)
    for _ in range(2):
        for model in (net, plain):
            model(ones()).square().sum().backward()
    for name, p in net.named_parameters():
        if p.requires_grad:
            w.same(p.grad.full_tensor(), dict(plain.named_parameters())[name].grad)
        else:
            assert p.grad is None and p.dtype == torch.int64


@on_ranks(size=2)
def test_shards_along_other_dims(w):
    mesh = w.mesh(names=("dp",))

    def largest(p):
        return Shard(max(range(p.ndim), key=lambda d: p.shape[d]) - p.ndim)

    net = sharded(new_net(), mesh, shard_placement_fn=largest)
    assert net.blocks[0].up.weight.placements == (Shard(1),)
    expect_same_training(w, net, w.size, w.rank)
    assert all(p.grad.to_local().is_contiguous() and p.to_local().is_contiguous() for p in net.parameters())


@on_ranks(size=2)
def test_wrong_dims_and_meshes_raise_as_in_pytorch(w):
    mesh = w.mesh(names=("dp",))
    with pytest.raises(AssertionError) as error:
        fully_shard(nn.Linear(2, 2), mesh=mesh, shard_placement_fn=lambda p: Shard(1))
    assert str(error.value) == (
        "meshtorch: Shard dim 1 is invalid for 1D tensor\n  from shard_placement_fn: S(1), parameter: bias, shape: [2]\n"
        "  do: give a dim that the parameter has"
    )
    with pytest.raises(ValueError, match=r"Shard\(dim\), or nothing"):
        fully_shard(nn.Linear(2, 2), mesh=mesh, shard_placement_fn=lambda p: Replicate())
    with pytest.raises(ValueError, match=r"^meshtorch: fully_shard expects a 1D or 2D DeviceMesh but got DeviceMesh\(\(2, 1, 1\)"):
        fully_shard(nn.Linear(2, 2), mesh=w.mesh(2, 1, 1))


@on_ranks(size=2)
def test_parameters_may_be_made_on_the_meta_device(w):
    mesh = w.mesh(names=("dp",))
    with torch.device("meta"):
        net = Net().double()
    sharded(net, mesh)
    assert all(p.is_meta and isinstance(p, DTensor) for p in net.parameters())
    net.to_empty(device="cpu")
    for p, q in zip(net.parameters(), new_net().parameters()):
        with torch.no_grad():
            p.copy_(distribute_tensor(q.detach(), mesh, [Shard(0)]))
    expect_same_training(w, net, w.size, w.rank)


@on_ranks
def test_the_first_rank_says_how_parameters_start(w):
    mesh = w.mesh(2, 2, names=("replicate", "shard"))
    net = new_net()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(w.rank)
    sharded(net, mesh)
    if w.kind != "fake":
        for p, q in zip(net.parameters(), new_net().parameters()):
            w.same(p.full_tensor(), q)


# Gradients.


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.idle = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        return {"left": (self.left(x), "text", 3), "right": [self.right(x), None]}


@on_ranks(size=2)
def test_outputs_and_modules_may_be_unused(w):
    mesh, net, plain = w.mesh(names=("dp",)), filled(Branches().double()), filled(Branches().double())
    for part in (net.left, net.right, net.idle, net):
        fully_shard(part, mesh=mesh)
    for used in ("left", "right", "left"):
        for model in (net, plain):
            outputs = model(ones())
            assert outputs["left"][1:] == ("text", 3)
            outputs[used][0].square().sum().backward()
        same_gradients(w, net, plain)


@on_ranks(size=2)
def test_a_hook_after_accumulation_sees_reduced_gradients(w):
    for make in (lambda net: sharded(net, w.mesh(names=("dp",))), lambda net: replicate(net, mesh=w.mesh(names=("dp",)))):
        net, plain, seen = make(new_net()), new_net(), []
        for model in (net, plain):
            optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

            def step(p, optimizers=optimizers, model=model):
                if model is net:
                    seen.append(isinstance(p, DTensor) and isinstance(p.grad, DTensor))
                optimizers[p].step()
                p.grad = None

            for p in model.parameters():
                p.register_post_accumulate_grad_hook(step)
        for number in range(3):
            for model in (net, plain):
                model(ones() * (number + 1)).square().mean().backward()
        assert seen == [True] * 3 * len(list(net.parameters()))
        for p, q in zip(net.parameters(), plain.parameters()):
            w.same(p.full_tensor(), q, rtol=1e-9, atol=1e-9)


@on_ranks(size=2)
def test_gradients_are_divided_and_changed_as_asked(w):
    net, plain = pair(w)
    for block in (*net.blocks, net):
        block.set_reduce_scatter_divide_factor(w.size * 4)
        block.set_all_reduce_hook(lambda shard: shard.mul_(2))
    net(ones()).sum().backward()
    (plain(ones()).sum() / 2).backward()
    same_gradients(w, net, plain)


@on_ranks
def test_what_waits_for_the_sum_over_copies_is_divided_once(w):
    net, plain = sharded(new_net(), w.mesh(2, 2)), new_net()
    for block in (*net.blocks, net):
        block.set_gradient_divide_factor(w.size / 2)
    for is_last in (False, True):
        net.set_requires_all_reduce(is_last)
        net(ones()).sum().backward()
        (plain(ones()).sum() * 2).backward()
    same_gradients(w, net, plain)


@on_ranks(size=2)
def test_norms_of_gradients_are_clipped(w):
    for norm_type in (2, 1, float("inf")):
        for foreach in (False, True):
            net, plain = pair(w)
            for model in (net, plain):
                model(ones()).square().sum().backward()
            norms = [
                torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1, norm_type=norm_type, foreach=foreach)
                for m in (net, plain)
            ]
            w.same(norms[0].full_tensor(), norms[1])
            same_gradients(w, net, plain)


@on_ranks(size=2)
def test_frozen_parameters(w):
    def frozen(net):
        net.blocks[0].up.weight.requires_grad_(False)
        net.blocks[1].requires_grad_(False)
        return net

    net, plain = sharded(frozen(new_net()), w.mesh(names=("dp",))), frozen(new_net())
    for _ in range(2):
        for model in (net, plain):
            model(model(ones())).square().mean().backward()
    same_gradients(w, net, plain)
    for model in (net, plain):  # and the other way round
        model.zero_grad()
        model.blocks[1].requires_grad_(True)
        model(ones()).square().mean().backward()
    same_gradients(w, net, plain)


@on_ranks(size=2)
def test_a_pass_that_failed_is_forgotten(w):
    net = sharded(new_net(), w.mesh(names=("dp",)))
    stops = True

    def stop(*_):
        if stops:
            raise RuntimeError("stop")

    net.blocks[1].down.register_forward_hook(stop)
    with pytest.raises(RuntimeError, match="stop"):
        net(ones())
    net.reset_iter_state()
    assert all(isinstance(p, DTensor) for p in net.parameters())
    stops = False
    expect_same_training(w, net, w.size, w.rank)


@on_ranks(size=2)
def test_activations_may_be_computed_again(w):
    class Checkpointed(Net):
        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.norm(x)

    net, plain = filled(Checkpointed().double()), new_net()
    sharded(net, w.mesh(names=("dp",)))
    for _ in range(2):
        comm = CommDebugMode()
        with comm:
            net(ones()).square().sum().backward()
        assert comm.get_comm_counts()[collectives.all_gather_into_tensor] == 3 + 2
        plain(ones()).square().sum().backward()
    same_gradients(w, net, plain)


@on_ranks(size=2)
def test_micro_batches_overlap(w):
    net, plain = pair(w)
    losses = []
    for number in range(3):  # forward runs ahead of backward by one
        losses.append(net(ones() * (number + 1)).sum())
        plain(ones() * (number + 1)).sum().backward()
        if number > 0:
            net.set_requires_gradient_sync(False)
            losses.pop(0).backward()
    net.set_requires_gradient_sync(True)
    losses.pop().backward()
    same_gradients(w, net, plain)


# Others.


@on_ranks(size=2)
def test_states_are_saved_and_loaded(w):
    mesh = w.mesh(names=("dp",))
    net, other = sharded(new_net(), mesh), sharded(Net().double(), mesh)
    state = net.state_dict()
    assert all(isinstance(value, DTensor) for value in state.values()) and list(state) == list(new_net().state_dict())
    other.load_state_dict(state)
    for p, q in zip(other.parameters(), net.parameters()):
        w.same(p.full_tensor(), q.full_tensor())
    expect_same_training(w, other, w.size, w.rank)


@on_ranks(size=1)
def test_one_rank_needs_nobody(w):
    net = sharded(new_net(), w.mesh(names=("dp",)), offload_policy=CPUOffloadPolicy())
    comm = CommDebugMode()
    with comm:
        expect_same_training(w, net, 1, 0)
    assert comm.get_total_counts() == 0


@on_ranks(size=2)
def test_methods_that_count_as_forward(w):
    net = fully_shard(filled(Block(6, 5)), mesh=w.mesh(names=("dp",)))
    register_fsdp_forward_method(net, "half")
    with pytest.raises(ValueError, match="has no method third"):
        register_fsdp_forward_method(net, "third")
    register_fsdp_forward_method(nn.Linear(2, 2), "third")  # not ours: nothing happens
    net.half(torch.ones(2, 6)).sum().backward()
    assert net.up.weight.grad is not None and net.down.weight.grad is None


@on_ranks(size=2)
def test_memory_is_known_before_anything_is_sharded(w):
    mesh = w.mesh(names=("dp",))
    with torch.device("meta"):
        whole = Net().double()
    found = estimate_memory(whole, mesh=mesh, groups=["blocks.*"], optimizer_numbers=1)
    net = sharded(new_net(), mesh)
    mine = found[w.rank]
    assert len(found) == w.size and mine["parameters"] == sum(p.to_local().nbytes for p in net.parameters())
    assert mine["replicas"] == 2 * sum(p.numel() * 8 for p in net.blocks[0].parameters())
    assert estimate_memory(net)[w.rank]["replicas"] == mine["replicas"]
    assert estimate_memory(whole, mesh=mesh, replicate=True)[0]["parameters"] == sum(p.nbytes for p in whole.parameters())


@on_ranks(size=2)
def test_sharding_by_torch_and_by_meshtorch_do_not_mix(w):
    if w.kind == "threads":
        return  # torch's groups are of processes
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard as torch_fully_shard

    theirs, ours = init_device_mesh("cpu", (w.size,)), w.mesh(names=("dp",))
    with pytest.raises(TypeError, match="use fully_shard of meshtorch.fsdp"):
        torch_fully_shard(distribute_module(nn.Linear(4, 4), ours), mesh=theirs)
    with pytest.raises(TypeError, match="that torch.distributed distributes: weight, a DTensor"):
        fully_shard(torch_fully_shard(nn.Linear(4, 4), mesh=theirs), mesh=ours)
