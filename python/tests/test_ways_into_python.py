"""Every way from an operator into Python: a rank that waits there lets the other ranks, which are threads, run."""

import contextlib
import functools

import meshtorch
import torch
from meshtorch import DTensor, Replicate, Shard, distribute_tensor
from torch import nn
from torch.nn import functional as F
from worlds import on_ranks


def gathered(x):
    """Makes ranks wait for each other."""
    return x.redistribute(placements=[Replicate()]).to_local()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gathered(x.detach())
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        gathered(gradient)
        return gradient * 2


@torch.library.custom_op("meshtorch_test::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@tripled.register_fake
def _(x):
    return torch.empty_like(x)


class Locked:
    """As functools.cached_property in Python 3.11: one lock for all objects of the class, held while it computes."""

    def __init__(self, gradient):
        self.gradient = gradient

    @functools.cached_property
    def whole(self):
        return gathered(self.gradient) if isinstance(self.gradient, DTensor) else self.gradient


def tripled_backward(ctx, gradient):
    out = torch.empty(gradient.shape)  # a plain tensor, as derivatives make them
    return out.copy_(Locked(gradient).whole * 3)


tripled.register_autograd(tripled_backward)


@torch.library.custom_op("meshtorch_test::scaled", mutates_args=())
def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * scale


@scaled.register_fake
def _(x, scale):
    return torch.empty_like(x)


def scaled_backward(ctx, gradient):
    result = torch.empty(gradient.shape)
    result.copy_(gradient * ctx.saved_tensors[0])
    return result, None


scaled.register_autograd(scaled_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]))


def split(w, shape=(8, 4), dim=0):
    values = torch.linspace(-1, 1, shape[0] * shape[1]).view(shape)
    return distribute_tensor(values, w.mesh(), [Shard(dim)]).requires_grad_()


@on_ranks
def test_functions_and_hooks(w):
    x = split(w)
    y = Doubled.apply(x)
    y.register_hook(lambda gradient: gathered(gradient) is None or None)
    module = nn.Identity()
    module.register_forward_hook(lambda *_: gathered(x.detach()) is None or None)
    module.register_full_backward_hook(lambda *_: gathered(x.detach()) is None or None)
    x.register_post_accumulate_grad_hook(lambda p: gathered(p.grad) is None or None)
    module(y).sum().backward()
    w.same(x.grad.full_tensor(), torch.full((8, 4), 2.0))


@on_ranks
def test_hooks_of_saved_tensors(w):
    x = split(w)
    pack, unpack = lambda t: (gathered(t.detach()), t)[1], lambda t: (gathered(t.detach()), t)[1]
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = (x * x).sum()
    y.backward()
    w.same(x.grad.full_tensor(), 2 * x.detach().full_tensor())


@on_ranks
def test_operators_of_a_users_own_with_their_derivatives(w):
    for dim in (0, 1):
        x = split(w, dim=dim)
        y = torch.ops.meshtorch_test.tripled(x)
        assert isinstance(y, DTensor)
        y.sum().backward()
        assert isinstance(x.grad, DTensor) and x.grad.placements == x.placements
        w.same(x.grad.full_tensor(), torch.full((8, 4), 3.0))
        with torch.no_grad():
            w.same(torch.ops.meshtorch_test.tripled(x).full_tensor(), 3 * x.full_tensor())


def same_loss_and_gradients(w, loss, parts, expected, plain):
    """`expected` was differentiated already."""
    w.same(loss.full_tensor(), expected)
    loss.sum().backward()
    for part, one in zip(parts, plain):
        assert isinstance(part.grad, DTensor)
        w.same(part.grad.full_tensor(), one.grad)


@on_ranks
def test_linear_cross_entropy_in_chunks(w):
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    inputs, weights = torch.linspace(-1, 1, 24).view(6, 4), torch.linspace(1, -1, 20).view(5, 4)
    target = torch.arange(6) % 5
    for reduction in ("none", "mean", "sum"):
        plain = [t.clone().requires_grad_() for t in (inputs, weights)]
        expected = F.linear_cross_entropy(*plain, target, reduction=reduction, options=options)
        expected.sum().backward()
        for dims in ((0, 0), (1, 1), (0, 1)):
            parts = [
                distribute_tensor(t, w.mesh(), [Shard(dim)]).requires_grad_() for t, dim in zip((inputs, weights), dims)
            ]
            whole_target = distribute_tensor(target, w.mesh(), [Replicate()])
            loss = F.linear_cross_entropy(*parts, whole_target, reduction=reduction, options=options)
            same_loss_and_gradients(w, loss, parts, expected, plain)


@on_ranks
def test_linear_cross_entropy_in_chunks_with_split_weights_of_classes(w):
    """Python before 3.12 holds one lock for all objects while a cached_property of PyTorch's derivative is computed: no
    rank may wait for another one inside of it."""
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    inputs, weights = torch.linspace(-1, 1, 24).view(6, 4), torch.linspace(1, -1, 20).view(5, 4)
    target, of_classes = torch.arange(6) % 5, torch.linspace(0.5, 2, 5)
    plain = [t.clone().requires_grad_() for t in (inputs, weights)]
    expected = F.linear_cross_entropy(*plain, target, weight=of_classes, reduction="none", options=options)
    expected.sum().backward()
    for layout in (Replicate(), Shard(0)):
        parts = [distribute_tensor(t, w.mesh(), [Shard(0)]).requires_grad_() for t in (inputs, weights)]
        labels = distribute_tensor(target, w.mesh(), [layout])
        split = distribute_tensor(of_classes, w.mesh(), [Shard(0)])
        loss = F.linear_cross_entropy(*parts, labels, weight=split, reduction="none", options=options)
        same_loss_and_gradients(w, loss, parts, expected, plain)


@on_ranks
def test_derivatives_of_a_users_own_beside_plain_tensors(w):
    """It would run on distributed tensors and write into a plain one: such an operator runs whole."""
    for size, scope in (((), contextlib.nullcontext), ((4,), meshtorch.implicit_replication)):
        x = distribute_tensor(torch.linspace(1, 2, 32).view(8, 4), w.mesh(), [Shard(0)]).requires_grad_()
        plain, scale = torch.linspace(1, 2, 32).view(8, 4).requires_grad_(), torch.full(size, 3.0)
        with scope():
            y = torch.ops.meshtorch_test.scaled(x, scale)
            y.sum().backward()
        torch.ops.meshtorch_test.scaled(plain, scale).sum().backward()
        assert isinstance(x.grad, DTensor)
        w.same(x.grad.full_tensor(), plain.grad)


@on_ranks
def test_a_plain_tensor_that_an_operator_reads_and_writes(w):
    x = distribute_tensor(torch.linspace(1, 2, 8), w.mesh(), [Shard(0)])
    whole = torch.linspace(1, 2, 8)
    total = torch.tensor(2.0)
    torch.add(total, x.sum(), out=total)
    w.same(total.full_tensor(), 2 + whole.sum())
    with meshtorch.implicit_replication():
        plain = torch.ones(8)
        plain.addcmul_(plain, x)
        w.same(plain.full_tensor(), 1 + whole)


@on_ranks
def test_shape_functions(w):
    """Decisions that are new to every rank ask torch's shape functions, which are Python."""
    for size in range(2, 8):
        x = distribute_tensor(torch.ones(size, 5), w.mesh(), [Shard(0)])
        w.same((x.t() @ x).relu().full_tensor(), torch.full((5, 5), float(size)))
