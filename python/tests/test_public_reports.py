"""Classes of bugs that were reported of PyTorch's DTensor and of Megatron in the last year; numbers are those of the reports."""

import pytest
import torch
import torch.nn.functional as F
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor, init_device_mesh, manual_seed
from meshtorch.parallel import loss_parallel
from meshtorch.placement_types import _StridedShard
from torch import nn

R, P = [Replicate()], [Partial()]


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def placements_of(t):
    return [R, P, *([Shard(dim)] for dim in range(t.dim()))]


def expect_same(w, function, tensors, layouts, what):
    """The values of a function of these tensors, and the gradients of the sum of their squares."""
    plain = [t.clone().requires_grad_() for t in tensors]
    split = [distribute_tensor(t, w.mesh(), p).requires_grad_() for t, p in zip(tensors, layouts)]
    expected, actual = function(*plain), function(*split)
    w.same(whole(actual), expected, msg=what)
    expected.square().sum().backward()
    actual.square().sum().backward()
    for one, other in zip(split, plain):
        w.same(whole(one.grad), other.grad, msg=what)


def log_softmax_without_its_loss(w):  # pytorch#190746
    x, weights, targets = numbers(4, 8), numbers(4, 8, seed=1), torch.tensor([1, 7, 0, 3])
    uses = [
        lambda logs, weights: (logs * weights).sum(),
        lambda logs, weights: F.nll_loss(logs, targets) + (logs.exp() * logs).sum(),
    ]
    for use in uses:
        plain = x.clone().requires_grad_()
        use(F.log_softmax(plain, 1), weights).backward()
        split = distribute_tensor(x, w.mesh(), [Shard(1)]).requires_grad_()
        with loss_parallel():
            use(F.log_softmax(split, 1), distribute_tensor(weights, w.mesh(), [Shard(1)])).backward()
        w.same(split.grad.full_tensor(), plain.grad)


def convolutions_split_anywhere(w):  # pytorch#191926
    x, weight = numbers(2, 4, 8, 12), numbers(6, 4, 2, 2, seed=1)
    for stride, padding in ((2, 0), (1, 1), (2, 1)):
        for placements in placements_of(x):
            call = lambda x, weight: F.conv2d(x, weight, None, stride, padding)  # noqa: B023
            expect_same(w, call, [x, weight], [placements, R], f"{stride} {padding} {placements}")


def running_extremes_and_products(w):  # pytorch#185362
    x = numbers(12, 8)
    x[6] = 0
    for function in (lambda t: t.cumprod(0), lambda t: t.cummax(0)[0], lambda t: t.cummin(1)[0], lambda t: t.logcumsumexp(0)):
        for placements in placements_of(x):
            expect_same(w, function, [x], [placements], str(placements))


def views_that_cannot_stay_split(w):  # pytorch#179502, #170427
    for shape, to in (((12, 8), (16, 6)), ((8, 12), (6, 16)), ((5, 4), (10, 2)), ((4, 6, 2), (8, 6)), ((7, 4), (4, 7))):
        x = numbers(*shape)
        for placements in placements_of(x):
            expect_same(w, lambda t: t.view(to), [x], [placements], f"{shape} {to} {placements}")  # noqa: B023
            expect_same(w, lambda t: t[:, : shape[1]], [x], [placements], f"{shape} {placements}")  # noqa: B023


def strided_shards_of_uneven_sizes(w):  # pytorch#168134, #166598
    if w.kind == "fake":  # torch's fake group refuses ranks that send nothing
        return
    for size in (5, 6, 7, 9):
        x, left = numbers(size, 4), numbers(3, size, seed=4)
        for factor in (2, 3):
            split = distribute_tensor(x, w.mesh(), R).redistribute(w.mesh(), [_StridedShard(0, split_factor=factor)])
            for placements in (R, [Shard(0)], [Shard(1)]):
                w.same(split.redistribute(w.mesh(), placements).full_tensor(), x)
            w.same((distribute_tensor(left, w.mesh(), [Shard(1)]) @ split).full_tensor(), left @ x)


def places_of_extremes(w):  # pytorch#175776, #175265
    x = torch.tensor([[1.0, 5, 5, 2], [7, 7, 0, 7], [3, 3, 3, 3]])
    for placements in [*placements_of(x), [Partial("max")], [Partial("min")]]:
        split = distribute_tensor(x, w.mesh(), R).redistribute(w.mesh(), placements)
        for dim in (0, 1):
            for name in ("max", "min", "median", "mode", "cummax", "cummin"):
                for one, other in zip(getattr(split, name)(dim), getattr(x, name)(dim)):
                    w.same(one.full_tensor(), other, msg=f"{name} {placements}")
            w.same(split.argmax(dim).full_tensor(), x.argmax(dim))
        w.same(split.argmin().full_tensor(), x.argmin())


def pending_tensors_written_in_place(w):  # pytorch#163374, #147570
    acts = {
        "clamp_": lambda t: t.clamp_(None, 0.5),
        "relu_": lambda t: t.relu_(),
        "add_": lambda t: t.add_(3),
        "abs_": lambda t: t.abs_(),
        "masked_fill_": lambda t: t.masked_fill_(t > 1, 0),
        "pow_": lambda t: t.pow_(2),
        "addcmul_": lambda t: t.addcmul_(t, t),
    }
    x = numbers(4, 3)
    for name, act in acts.items():
        for placements in (P, [Partial("avg")]):
            split, plain = distribute_tensor(x, w.mesh(), placements), x.clone()
            views = [(split.view(-1), plain.view(-1)), (split.detach(), plain.detach()), (split, plain)]
            act(split), act(plain)
            for one, other in views:
                w.same(one.full_tensor(), other, msg=name)


def numbers_beside_pending_sums(w):  # pytorch#153603, #147180, #163193
    x = numbers(7, 3)
    for placements in placements_of(x):
        split = distribute_tensor(x, w.mesh(), placements)
        for number in (1, 2, -5, 0, 2.5):
            for function in (
                lambda t: t.sum() * number,  # noqa: B023
                lambda t: t.mean() + number,  # noqa: B023
                lambda t: number - t.sum(),  # noqa: B023
                lambda t: t.sum() + torch.tensor(number, dtype=torch.float64),  # noqa: B023
                lambda t: (-5 * t == number * t).sum(),  # noqa: B023
            ):
                w.same(function(split).full_tensor(), function(x), msg=f"{number} {placements}")


def pending_extremes_and_averages(w):
    if w.kind == "fake":
        return
    functions = [
        lambda t: -t,
        lambda t: t * -2,
        lambda t: t + 1,
        lambda t: t.square(),
        lambda t: 1 / t,
        lambda t: t.exp(),
        lambda t: t.clamp(-0.5, 0.5),
        lambda t: torch.where(t > 0, t, 0.0),
        lambda t: torch.cat([t, t * -1]),
        lambda t: t.sum(),
        lambda t: t @ t.t(),
        lambda t: t.to(torch.int64),
    ]
    parts = torch.stack([numbers(3, 2, seed=rank) for rank in range(w.size)])
    sums = {"max": parts.amax(0), "min": parts.amin(0), "product": parts.prod(0), "avg": parts.mean(0)}
    for op, expected in sums.items():
        split = DTensor.from_local(parts[w.rank].clone(), w.mesh(), [Partial(op)])
        for function in functions:
            w.same(whole(function(split)), function(expected), msg=op)


def gradients_through_local_tensors(w):  # pytorch#172932
    x, weight = numbers(6), numbers(2, 6, seed=1)

    def function(x, weight):
        y = weight @ x
        return y if not isinstance(y, DTensor) else DTensor.from_local(y.to_local(), w.mesh(), y.placements)

    expect_same(w, function, [x, weight], [[Shard(0)], [Shard(1)]], "to_local and back")


def gradients_of_what_is_not_used(w):  # pytorch#173123, #178582, #180486
    x = numbers(4, 6)
    functions = [
        lambda t: t.split(2, 1)[1],
        lambda t: t.unbind(0)[1],
        lambda t: torch.topk(t, 2, 1)[0],
        lambda t: torch.linalg.svd(t)[1],
        lambda t: torch.var_mean(t, 1)[0],
        lambda t: t.t() @ t,
    ]
    for function in functions:
        for placements in placements_of(x):
            expect_same(w, function, [x], [placements], str(placements))


def embeddings_and_bags(w):
    table, ids = numbers(7, 3), torch.tensor([[0, 6, 3], [3, 3, 1]])
    for placements in placements_of(table):
        for options in ({}, {"padding_idx": 3}, {"padding_idx": -1}, {"scale_grad_by_freq": True}):
            def look_up(table):
                its_ids = distribute_tensor(ids, w.mesh(), R) if isinstance(table, DTensor) else ids
                return F.embedding(its_ids, table, **options)  # noqa: B023

            expect_same(w, look_up, [table], [placements], f"{options} {placements}")


def routers_and_experts(w):  # Megatron-LM#7452: auxiliary losses, biases, gates of which ranks hold parts
    tensors = [numbers(6, 4), numbers(4, 3, seed=1), numbers(3, 4, 4, seed=2), numbers(3, 4, seed=3)]

    def loss(x, router, experts, bias):
        chances = F.softmax(x @ router, -1)
        top, index = chances.topk(2, -1)
        gates = torch.zeros_like(chances).scatter(1, index, top)
        balance = (F.one_hot(index, 3).sum(1).to(chances.dtype).mean(0) * chances.mean(0)).sum()
        size = torch.logsumexp(x @ router, -1).square().mean()
        y = torch.einsum("td,edh->teh", x, experts) + bias
        return (y * gates.unsqueeze(-1)).sum(1).square().mean() + 0.1 * balance + 0.01 * size

    s = Shard
    for layouts in ([[s(0)], R, R, R], [R, R, [s(0)], [s(0)]], [[s(0)], [s(1)], [s(0)], [s(0)]], [[s(1)], [s(0)], [s(2)], [s(1)]]):
        expect_same(w, loss, tensors, layouts, str(layouts))


def random_numbers_under_every_layout(w):  # pytorch#168058, #180088, #190795
    if w.kind == "fake":
        return
    drawn = []
    for placements in ([Shard(0)], [Shard(1)], R):
        manual_seed(5)
        t = distribute_tensor(torch.zeros(7, 5), w.mesh(), placements)
        draws = [nn.init.trunc_normal_(t.clone(), std=0.5, a=-0.6, b=0.6), nn.init.orthogonal_(t.clone()), F.dropout(t + 1)]
        draws += [torch.rand_like(t), t.clone().exponential_(), torch.multinomial(t + 1, 2), t.clone().random_(0, 9)]
        assert draws[0].abs().max() <= 0.6
        drawn.append([draw.full_tensor() for draw in draws])
    for split, other, expected in zip(*drawn):
        w.same(split, expected)
        w.same(other, expected)
    of_one = init_device_mesh("cpu", (w.size, 1))
    pending = distribute_tensor(torch.zeros(3, 2), of_one, [Shard(0), Partial()])
    assert nn.init.normal_(pending).full_tensor().shape == (3, 2)


def meshes_of_single_ranks(w):  # pytorch#169381
    mesh = w.mesh(1, w.size, 1, 1, names=("a", "b", "c", "d"))
    mesh[("b", "c")]._flatten("bc")
    cut = mesh[("a", "bc", "d")]
    assert cut.shape == (1, w.size, 1)
    x = numbers(4, 6)
    w.same(distribute_tensor(x, cut, [Replicate(), Shard(0), Replicate()]).full_tensor(), x)


def modules_that_are_copied(w):
    import copy

    module = distribute_module(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).double(), w.mesh())
    other = copy.deepcopy(module)
    other.load_state_dict({name: t * 3 for name, t in module.state_dict().items()})
    for one, before in zip(other.parameters(), module.parameters()):
        assert one.is_leaf and one.requires_grad
        w.same(one.full_tensor(), before.full_tensor() * 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "body",
    [
        log_softmax_without_its_loss,
        convolutions_split_anywhere,
        running_extremes_and_products,
        views_that_cannot_stay_split,
        strided_shards_of_uneven_sizes,
        places_of_extremes,
        pending_tensors_written_in_place,
        numbers_beside_pending_sums,
        pending_extremes_and_averages,
        gradients_through_local_tensors,
        gradients_of_what_is_not_used,
        embeddings_and_bags,
        routers_and_experts,
        random_numbers_under_every_layout,
        meshes_of_single_ranks,
        modules_that_are_copied,
    ],
    ids=lambda body: body.__name__,
)
def test_class_of_reports(ranks, body):
    ranks(body, size=3)
