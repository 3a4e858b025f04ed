"""Groups of several modules, of which some may not run, and parameters that modules share: behaviours of FSDP2."""

import gc

import pytest
import torch
from fsdp_models import Block, expect_same_gradients, new_net, ones, pair, same_gradients, sharded
from meshtorch import DTensor
from meshtorch.fsdp import MixedPrecisionPolicy, fully_shard
from meshtorch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch import nn
from torch.utils.checkpoint import checkpoint
from worlds import filled, on_ranks

WORDS, WIDTH = 11, 6


class Headed(nn.Module):
    """A model whose head may be called by itself, chunk by chunk, so that not all logits are there at once."""

    def __init__(self, ties=False, recomputes=False):
        super().__init__()
        self.embed, self.body = nn.Embedding(WORDS, WIDTH), Block(WIDTH, 5)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.recomputes = recomputes
        if ties:
            self.head.weight = self.embed.weight

    def forward(self, ids, skip_head=False):
        x = self.embed(ids)
        x = checkpoint(self.body, x, use_reentrant=False) if self.recomputes else self.body(x)
        x = self.norm(x)
        return x if skip_head else self.head(x)


def headed(w, ties=False, recomputes=False, policy=MixedPrecisionPolicy(), together=True, **options):
    """Norm and head in one group (with the embedding, if that shares its weight), and the same on one device."""
    net, plain = (filled(Headed(ties, recomputes).double()) for _ in range(2))
    options["mesh"] = w.mesh(names=("dp",))
    fully_shard(net.body, **options)
    if ties:
        fully_shard([net.embed, net.norm, net.head], mp_policy=policy, **options)
    else:
        for part in ([net.norm, net.head],) if together else (net.norm, net.head):
            fully_shard(part, mp_policy=policy, **options)
    fully_shard(net, **options)
    return net, plain


def ids(seed=0):
    return ((torch.arange(16) + seed) ** 2 % WORDS).view(2, 8)


def train_in_chunks(model, seed=0, around=None):
    """A pass without the head, then the head and its backward for each chunk, then the rest of backward."""
    hidden = model(ids(seed), skip_head=True)
    gradients = []
    for chunk in hidden.detach().chunk(4, dim=1):
        chunk = chunk.contiguous().requires_grad_()
        model.head(chunk.double()).square().sum().backward()
        gradients.append(chunk.grad)
        if around is not None:
            around()
    return hidden, torch.cat(gradients, 1)


@on_ranks(size=2)
def test_a_module_of_a_group_may_run_by_itself_after_the_others(w):
    cases = [{"reshard_after_forward": r, "ties": t} for r in (True, False) for t in (False, True)]
    for case in (*cases, {"recomputes": True}, {"together": False}):
        net, plain = headed(w, **case)
        adams = [torch.optim.Adam(model.parameters(), lr=1e-2) for model in (net, plain)]
        for step in range(3):
            for model in (net, plain):
                hidden, gradient = train_in_chunks(model, step)
                hidden.backward(gradient)
            same_gradients(w, net, plain)
            for adam in adams:
                adam.step()
                adam.zero_grad(set_to_none=step % 2 == 0)
            assert all(isinstance(p, DTensor) for p in net.parameters()), case


@on_ranks(size=2)
def test_modules_of_a_group_cast_what_they_give_each_by_itself(w):
    """Outputs of the group's modules are cast, also of one that does not run with the others."""
    net, _ = headed(w, policy=MixedPrecisionPolicy(output_dtype=torch.bfloat16))
    hidden = net(ids(), skip_head=True)
    assert hidden.dtype == torch.bfloat16 and net.head(hidden.double()).dtype == torch.bfloat16


@on_ranks(size=2)
def test_chunks_accumulate_without_reduction(w):
    for reshards in (True, False):
        net, plain = headed(w, reshard_after_forward=reshards)
        for number in range(3):
            net.set_requires_gradient_sync(number == 2)
            net.set_is_last_backward(number == 2)
            for model in (net, plain):
                hidden, gradient = train_in_chunks(model, number)
                hidden.backward(gradient)
        same_gradients(w, net, plain)


@on_ranks(size=2)
def test_a_head_may_stay_whole_for_all_chunks(w):
    for ties in (False, True):
        net, plain = headed(w, ties=ties)
        whole = []
        for model in (net, plain):
            if model is net:
                net.head.set_reshard_after_forward(False)
                net.head.set_reshard_after_backward(False)
                hidden, gradient = train_in_chunks(net, around=lambda: whole.append(isinstance(net.head.weight, DTensor)))
                assert whole == [False] * 4
                whole.clear()
                net.head.set_reshard_after_forward(True)
                net.head.set_reshard_after_backward(True)
                net.head.reshard()
                assert isinstance(net.head.weight, DTensor)
            else:
                hidden, gradient = train_in_chunks(plain)
            hidden.backward(gradient)
        same_gradients(w, net, plain)


@on_ranks(size=2)
def test_two_passes_without_the_head_come_before_backward(w):
    net, plain = headed(w)
    for model in (net, plain):
        first, second = (model(ids(seed), skip_head=True) for seed in (0, 1))
        (first.sum() + second.square().sum()).backward()
    same_gradients(w, net, plain)
    assert net.head.weight.grad is None and net.norm.weight.grad is not None


@on_ranks(size=2)
def test_a_pass_that_failed_in_between_is_forgotten(w):
    net, plain = headed(w)
    stops = [True]

    def stop(*_):
        if stops:
            raise RuntimeError("stop")

    net.body.down.register_forward_hook(stop)
    with pytest.raises(RuntimeError, match="stop"):
        net(ids(), skip_head=True)
    stops.clear()
    net.reset_iter_state()
    expect_same_gradients(w, net, plain, lambda model: model(ids()).square().sum())


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.b(self.a(x).float())


@on_ranks(size=2)
def test_inputs_are_cast_for_each_module_of_a_group(w):
    net, policy = filled(Steps()), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard([net.a, net.b], mesh=w.mesh(names=("dp",)), mp_policy=policy)
    fully_shard(net, mesh=w.mesh(names=("dp",)), mp_policy=policy)
    y = net(torch.ones(2, 6))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert all(p.grad is not None for p in net.parameters())


@on_ranks(size=2)
def test_two_passes_of_nested_groups_are_computed_again(w):
    """As in training on pairs of answers: two passes, one loss."""

    def make(reshards):
        net, plain = new_net(), new_net()
        for block in net.blocks:
            for part in (block.up, block.down, block):
                fully_shard(part, mesh=w.mesh(names=("dp",)), reshard_after_forward=reshards)
        return fully_shard(net, mesh=w.mesh(names=("dp",)), reshard_after_forward=reshards), plain

    def run(model, x):
        for block in model.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return model.norm(x) * torch.arange(6)

    for reshards in (True, False):
        net, plain = make(reshards)
        net.forward = lambda x, net=net: run(net, x)
        for model, call in ((net, net), (plain, lambda x, plain=plain: run(plain, x))):
            (call(ones()).sum() - call(ones() * torch.arange(6)).sum()).square().backward()
        same_gradients(w, net, plain)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


@on_ranks(size=2)
def test_modules_of_one_group_may_share_a_parameter(w):
    mesh = w.mesh(names=("dp",))
    for reshards in (True, False):  # of 11 rows the ranks have uneven parts
        net, plain = (filled(Tied().double()) for _ in range(2))
        fully_shard([net.embed, net.head], mesh=mesh, reshard_after_forward=reshards)
        fully_shard(net, mesh=mesh, reshard_after_forward=reshards)
        adams = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (net, plain)]
        for step in range(3):
            for model, adam in zip((net, plain), adams):
                adam.zero_grad()
                nn.functional.cross_entropy(model(ids(step)).flatten(0, 1), ids(step).flatten()).backward()
                adam.step()
        w.same(net.head.weight.full_tensor(), plain.head.weight, rtol=1e-9, atol=1e-9)
        assert net.head.weight is net.embed.weight


@on_ranks(size=2)
def test_modules_of_two_groups_that_share_a_parameter_are_refused(w):
    net = Tied()
    for part in (net.embed, net.head, net):
        fully_shard(part, mesh=w.mesh(names=("dp",)))
    with pytest.raises(ValueError, match="shared by modules of several groups: head.weight"):
        net(ids())


@on_ranks(size=2)
def test_layers_may_be_sharded_as_they_are_made(w):
    mesh, net = w.mesh(names=("dp",)), nn.Sequential()
    for _ in range(8):
        net.append(fully_shard(filled(Block(6, 5).double()), mesh=mesh))
        gc.collect()
    fully_shard(net, mesh=mesh)
    plain = nn.Sequential(*(filled(Block(6, 5).double()) for _ in range(8)))
    expect_same_gradients(w, net, plain)


@on_ranks(size=2)
def test_a_group_without_parameters_may_be_gathered(w):
    """A group of no parameters, and one that never ran."""
    net, plain = nn.Sequential(*new_net().blocks), nn.Sequential(*new_net().blocks)
    for block in (*net, net):
        fully_shard(block, mesh=w.mesh(names=("dp",)))
    net.unshard(async_op=True).wait()
    net[0].unshard()
    w.same(net[0].up.weight, plain[0].up.weight)
    expect_same_gradients(w, net, plain)


@on_ranks(size=2)
def test_a_state_dict_that_was_taken_before_shows_what_training_does(w):
    """A state dict that was taken once shows what training does."""
    net, _ = pair(w)
    state = net.state_dict()
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    before = {name: value.full_tensor().clone() for name, value in state.items()}
    for _ in range(2):
        adam.zero_grad()
        net(ones()).square().sum().backward()
        adam.step()
    for name, p in net.named_parameters():
        w.same(state[name].full_tensor(), p.full_tensor())
        assert w.kind == "fake" or not torch.equal(before[name], p.full_tensor())


@on_ranks
def test_norms_of_gradients_on_two_meshes_are_clipped(w):
    """What a plan of tensor parallelism leaves plain is on the axis of batches only."""
    mesh = w.mesh(2, 2, names=("dp", "tp"))
    for norm_type in (2, 1, float("inf")):
        for foreach in (False, True):
            net, plain = new_net(), new_net()
            parallelize_module(net, mesh["tp"], {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()})
            sharded(net, mesh["dp"])
            assert net.norm.weight.device_mesh != net.blocks[0].up.weight.device_mesh
            norms = []
            for model in (net, plain):
                model(ones()).square().sum().backward()
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=norm_type, foreach=foreach))
            w.same(norms[0], norms[1])
            same_gradients(w, net, plain)
