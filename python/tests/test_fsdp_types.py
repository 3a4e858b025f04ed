"""Mixed precision and structured inputs and outputs of meshtorch.fsdp: behaviours of FSDP2 that a Python user can see."""

import dataclasses
from typing import NamedTuple

import torch
from fsdp_models import Block
from meshtorch.fsdp import MixedPrecisionPolicy, fully_shard, replicate
from torch import nn
from torch.utils.checkpoint import checkpoint
from worlds import filled, on_ranks

low, full = torch.bfloat16, torch.float32


class Typed(nn.Module):
    """Tells in which types it runs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.seen = []

    def forward(self, x, mask, extra=None):
        self.seen.append((x.dtype, mask.dtype, None if extra is None else extra.dtype, self.linear.weight.dtype))
        return self.norm(self.linear(x))


@on_ranks(size=2)
def test_inputs_are_cast_as_the_policy_says(w):
    mesh = w.mesh(names=("dp",))
    for casts in (True, False):
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=full, output_dtype=full, cast_forward_inputs=casts)
        net = fully_shard(Typed(), mesh=mesh, mp_policy=policy)
        x = torch.ones(4, 6, dtype=full if casts else low)
        y = net(x, torch.ones(4, dtype=torch.int64), extra=x)
        assert net.seen == [(low, torch.int64, low, low)] and y.dtype == full
        y.sum().backward()
        assert {(p.dtype, p.grad.dtype) for p in net.parameters()} == {(full, full)}


@on_ranks(size=2)
def test_gradients_accumulate_under_a_policy(w):
    mesh = w.mesh(names=("dp",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net, low = fully_shard(filled(Block(6, 5)), mesh=mesh, mp_policy=policy), filled(Block(6, 5)).bfloat16()
    expected = [torch.zeros(p.shape) for p in low.parameters()]
    for number in range(3):
        x = torch.full((2, 6), number + 1.0, dtype=torch.bfloat16)
        net.set_requires_gradient_sync(number == 2)
        net(x).sum().backward()
        low.zero_grad()
        low(x).sum().backward()
        for sum_, p in zip(expected, low.parameters()):
            sum_ += p.grad.float()
    for p, q in zip(net.parameters(), expected):
        w.same(p.grad.full_tensor(), q, rtol=2e-2, atol=2e-2)


class TakesTwo(nn.Module):
    def __init__(self, seen):
        super().__init__()
        self.linear, self.seen = nn.Linear(6, 6), seen

    def forward(self, x, y):
        self.seen.update(inner_x=x.dtype, inner_y=y.dtype)
        return self.linear(x)


class MakesOne(nn.Module):
    """Its second layer gets a tensor that the first has not seen."""

    def __init__(self, seen):
        super().__init__()
        self.first, self.second, self.seen = nn.Linear(6, 6), TakesTwo(seen), seen

    def forward(self, x):
        self.seen.update(x=x.dtype)
        return self.second(self.first(x), torch.ones(2, 6))


@on_ranks(size=2)
def test_inputs_from_elsewhere_are_cast_where_the_policy_says(w):
    mesh = w.mesh(names=("dp",))
    for casts in (True, False):
        seen = {}
        net = MakesOne(seen)
        fully_shard(net.second, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=low, cast_forward_inputs=casts))
        fully_shard(net, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=low))
        net(torch.ones(2, 6)).sum().backward()
        assert seen == {"x": low, "inner_x": low, "inner_y": low if casts else full}


@on_ranks(size=2)
def test_part_of_a_model_may_compute_in_another_type(w):
    mesh, net, plain = w.mesh(names=("dp",)), nn.Sequential(Block(6, 5), Block(6, 5)), nn.Sequential(Block(6, 5), Block(6, 5))
    filled(net), filled(plain)
    fully_shard(net[0], mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=low, output_dtype=full))
    fully_shard(net, mesh=mesh)
    plain[0].to(low)
    x = torch.ones(2, 6)
    net(x).sum().backward()
    plain[1](plain[0](x.to(low)).float()).sum().backward()
    for p, q in zip(net.parameters(), plain.parameters()):
        assert (p.dtype, p.grad.dtype) == (full, full)
        w.same(p.grad.full_tensor(), q.grad.float(), rtol=1e-5, atol=1e-5)


class Recomputed(nn.Module):
    def __init__(self, input_type):
        super().__init__()
        self.typed, self.input_type, self.outputs = Typed(), input_type, []

    def run(self, x):
        y = self.typed(x, torch.ones(2, dtype=torch.int64))
        self.outputs.append(y.dtype)
        return y

    def forward(self, x):
        return checkpoint(self.run, x.to(self.input_type), use_reentrant=False, early_stop=False).float().sum()


@on_ranks(size=2)
def test_what_is_computed_again_has_the_same_types(w):
    mesh = w.mesh(names=("dp",))
    for casts, output in ((True, None), (False, full)):
        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low, output_dtype=output, cast_forward_inputs=casts)
        net = Recomputed(full if casts else low)
        fully_shard(net.typed, mesh=mesh, mp_policy=policy)
        fully_shard(net, mesh=mesh, mp_policy=policy)
        net(torch.ones(2, 6)).backward()
        assert [types[0] for types in net.typed.seen] == [low, low]
        assert net.outputs == [output or low] * 2


@on_ranks(size=2)
def test_normalisations_may_keep_their_type(w):
    """Layers that normalise in single precision between layers of half precision."""
    mesh = w.mesh(names=("dp",))
    half = MixedPrecisionPolicy(param_dtype=low)
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.LayerNorm(6), nn.Linear(6, 6))
    fully_shard(net[1], mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=full, output_dtype=low))
    for module in (net[0], net[2], net[3], net):
        fully_shard(module, mesh=mesh, mp_policy=half)
    y = net(torch.ones(4, 6))
    assert y.dtype == low
    y.sum().backward()
    assert {p.grad.dtype for p in net.parameters()} == {full}
    assert net[1].running_mean.dtype == full


@on_ranks(size=2)
def test_reductions_keep_the_type_of_the_policy_when_the_module_changes_its_own(w):
    mesh, seen = w.mesh(names=("dp",)), []
    net = nn.Linear(6, 6, dtype=low)
    fully_shard(net, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low))
    net.to(full)
    net.set_all_reduce_hook(lambda shard: seen.append(shard.dtype))
    net(torch.ones(2, 6)).sum().backward()
    assert seen == [low, low] and net.weight.grad.dtype == full


class Numbers(nn.Module):
    def __init__(self, types):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        for i, each in enumerate(types):
            self.register_parameter(f"p{i}", nn.Parameter(torch.arange(6).to(each), requires_grad=False))
        self.types = types

    def forward(self, x):
        for i, each in enumerate(self.types):
            p = getattr(self, f"p{i}")
            assert p.dtype == each and p.shape == (6,)
            x = x + p.to(x.dtype)
        return self.linear(x)


@on_ranks(size=2)
def test_parameters_of_integers_are_gathered_and_neither_cast_nor_reduced(w):
    mesh = w.mesh(names=("dp",))
    types = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
    for make in (fully_shard, replicate):
        for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(param_dtype=low, reduce_dtype=full)):
            for frozen in (False, True):
                net, plain = filled_floats(Numbers(types)), filled_floats(Numbers(types)).to(full)
                net.linear.weight.requires_grad_(not frozen)
                make(net, mesh=mesh, mp_policy=policy)
                net(torch.ones(2, 6)).float().sum().backward()
                plain(torch.ones(2, 6)).sum().backward()
                assert (net.linear.weight.grad is None) == frozen
                assert all(p.grad is None for name, p in net.named_parameters() if name[0] == "p")
                w.same(net.linear.bias.grad.full_tensor(), plain.linear.bias.grad, rtol=1e-2, atol=1e-2)


def filled_floats(module):
    filled(module.linear)
    return module


# What goes in and comes out in structures.


@dataclasses.dataclass
class Two:
    x: torch.Tensor
    name: str
    y: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Two
    z: torch.Tensor


class NamedTwo(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Structured(nn.Module):
    """A layer for each tensor of what goes in, whatever holds it."""

    def __init__(self, kind):
        super().__init__()
        self.linear, self.kind, self.seen = nn.Linear(6, 6), kind, []

    def forward(self, value):
        call = self.linear
        if self.kind == "dataclass":
            self.seen.append(value.x.dtype)
            return Two(call(value.x), value.name, call(value.y))
        if self.kind == "nested":
            self.seen.append(value.inner.x.dtype)
            return Outer(Two(call(value.inner.x), value.inner.name, call(value.inner.y)), call(value.z))
        self.seen.append(value.x.dtype)
        return NamedTwo(call(value.x), call(value.y))


def structure(kind, type_):
    x, y, z = (k * torch.linspace(-1, 1, 12).view(2, 6).to(type_) for k in (1, 2, 4))
    two = Two(x, "text", y)
    return {"dataclass": two, "nested": Outer(two, z), "namedtuple": NamedTwo(x, y)}[kind]


def total(kind, value):
    if kind == "nested":
        return total("dataclass", value.inner) + value.z.float().sum()
    assert kind != "dataclass" or value.name == "text"
    return (value.x.float().square() + value.y.float()).sum()


@on_ranks(size=2)
def test_structures_of_tensors_go_in_and_come_out(w):
    mesh = w.mesh(names=("dp",))
    for kind in ("dataclass", "nested", "namedtuple"):
        for type_ in (None, low):
            net, plain = (filled(nn.Sequential(Structured(kind), Structured(kind))) for _ in range(2))
            policy = MixedPrecisionPolicy(param_dtype=type_, reduce_dtype=full)
            for layer in (*net, net):
                fully_shard(layer, mesh=mesh, mp_policy=policy)
            if type_:
                plain.to(type_)
            given = structure(kind, full)
            losses = [total(kind, net(given)), total(kind, plain(structure(kind, type_ or full)))]
            w.same(losses[0], losses[1])
            for loss in losses:
                loss.backward()
            assert net[0].seen == [type_ or full]
            assert total(kind, given) == total(kind, structure(kind, full)), "what the caller holds is left alone"
            for p, q in zip(net.parameters(), plain.parameters()):
                w.same(p.grad.full_tensor(), q.grad.float())
