"""The style _ContextParallel: attention of modules that take plain shards of a sequence, and orders of equal work."""

import copy
import functools

import meshtorch
import pytest
import torch
import torch.nn.functional as F
from meshtorch import DTensor, Shard
from meshtorch.debug import CommDebugMode
from meshtorch.experimental import context_parallel, context_parallel_unshard
from meshtorch.experimental._attention import (
    _CausalBehavior,
    _context_parallel_shard,
    _ContextParallel,
    _cp_options,
    _disable_context_parallel_dispatcher,
    _enable_context_parallel_dispatcher,
    _HeadTailLoadBalancer,
    _is_causal_behavior,
    _PerDocumentHeadTailLoadBalancer,
    _PTRRLoadBalancer,
    _RotateMethod,
    set_rotate_method,
)
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from worlds import on_ranks

SDPA, FLEX = _ContextParallel.AttentionType.SDPA, _ContextParallel.AttentionType.FLEX


def with_usual_options(body):
    """Options belong to the rank, and ranks that are processes serve many tests."""

    @functools.wraps(body)
    def wrapped(*args):
        try:
            return body(*args)
        finally:
            _cp_options.enable_load_balance, _cp_options.load_balancer = True, None
            _disable_context_parallel_dispatcher()

    return wrapped


def numbers(*shape, seed=0):
    steps = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(steps * 0.7 + seed).view(shape)


class Attention(nn.Module):
    def forward(self, query, key, value, *, is_causal=True, fails=False):
        if fails:
            raise LookupError("inside")
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


class Flex(nn.Module):
    def forward(self, query, key, value, block_mask=None):
        return flex_attention(query, key, value, block_mask=block_mask)


def styled_attention(w, balanced):
    mesh = w.mesh()
    whole = [numbers(2, 2, 4 * w.size, 8, seed=s).requires_grad_() for s in (1, 2, 3)]
    expected = F.scaled_dot_product_attention(*whole, is_causal=True)
    expected.square().sum().backward()
    balancer = _HeadTailLoadBalancer(4 * w.size, w.size, "cpu") if balanced else None
    parts = _context_parallel_shard(mesh, [t.detach() for t in whole], [2, 2, 2], balancer)
    assert all(type(t) is torch.Tensor and not isinstance(t, DTensor) and t.shape[2] == 4 for t in parts)
    parts = [t.requires_grad_() for t in parts]
    _enable_context_parallel_dispatcher()
    net = meshtorch.parallel.parallelize_module(Attention(), mesh, _ContextParallel(seq_dim=2, attention_type=SDPA))
    net = copy.deepcopy(net)
    with pytest.raises(LookupError, match="inside"):
        net(*parts, fails=True)
    query, key, value = parts
    out = net(query, key=key, value=value)
    assert not isinstance(out, DTensor) and out.shape == query.shape
    out.square().sum().backward()
    gathered = context_parallel_unshard(mesh, [out.detach()] + [t.grad for t in parts], [2] * 4, balancer)
    for one, t in zip(gathered, [expected] + [t.grad for t in whole]):
        w.same(one, t)


@with_usual_options
def on_balanced(w):
    styled_attention(w, balanced=True)


@with_usual_options
def on_natural(w):
    styled_attention(w, balanced=False)


def test_a_module_with_the_style_attends_to_the_whole_sequence_in_balanced_order(ranks):
    ranks(on_balanced)


def test_a_module_with_the_style_attends_to_the_whole_sequence_in_its_own_order(ranks):
    ranks(on_natural)


@with_usual_options
def disabled(w):
    mesh = w.mesh()
    whole = [numbers(1, 2, 4 * w.size, 8, seed=s) for s in (1, 2, 3)]
    net = meshtorch.parallel.parallelize_module(Attention(), mesh, _ContextParallel(2, SDPA))
    parts = [t.chunk(w.size, 2)[w.rank] for t in whole]
    w.same(net(*parts), F.scaled_dot_product_attention(*whole, is_causal=True).chunk(w.size, 2)[w.rank])
    split = [DTensor.from_local(t, mesh, [Shard(1)]) for t in parts]
    with pytest.raises(ValueError, match="got a tensor that is distributed as"):
        net(*split)
    balancer = _PerDocumentHeadTailLoadBalancer([[2 * w.size]], w.size, "cpu")
    _context_parallel_shard(mesh, [torch.arange(2 * w.size)], [0], balancer)
    with pytest.raises(ValueError, match="were split by _PerDocumentHeadTailLoadBalancer"):
        net(*parts)


def test_without_the_dispatcher_sequences_are_in_their_order_and_unknown_orders_are_refused(ranks):
    ranks(disabled)


def flex(w, balancer_of):
    mesh = w.mesh()
    length = 256 * w.size
    documents = torch.arange(length) // (length // 2)

    def seen(b, h, q, k):
        return (documents[q] == documents[k]) & (q >= k)

    mask = create_block_mask(seen, 1, 1, length, length, device="cpu")
    whole = [numbers(1, 2, length, 8, seed=s) for s in (1, 2, 3)]
    visible = (documents[:, None] == documents) & torch.ones(length, length, dtype=torch.bool).tril()
    expected = F.scaled_dot_product_attention(*whole, attn_mask=visible)
    balancer = balancer_of(mask, length, w.size)
    *parts, part_of_mask = _context_parallel_shard(mesh, [*whole, mask], [2, 2, 2, 2], balancer)
    net = meshtorch.parallel.parallelize_module(Flex(), mesh, _ContextParallel(2, FLEX))
    query, key, value = parts
    with CommDebugMode() as comm:
        out = net(query, key, value=value, block_mask=part_of_mask)
    assert comm.get_total_counts() == 2
    (gathered,) = context_parallel_unshard(mesh, [out], [2], balancer)
    w.same(gathered, expected)


@with_usual_options
def flex_in_each_order(w):
    if w.kind != "gloo":
        return  # torch traces flex_attention once a process
    flex(w, lambda mask, length, size: None)
    flex(w, lambda mask, length, size: _PTRRLoadBalancer(mask, size))
    flex(w, lambda mask, length, size: _PerDocumentHeadTailLoadBalancer([[length // 2] * 2], size, "cpu"))


def test_flex_attention_of_split_queries(ranks):
    ranks(flex_in_each_order)


@on_ranks
def test_keys_are_gathered_by_place_and_by_name_and_their_gradients_come_back(w):
    mesh = w.mesh()
    style = _ContextParallel(0, FLEX)
    key, value = (numbers(3, seed=w.rank + s).requires_grad_() for s in (1, 2))
    (query, keys), rest = style.flex_input_fn(None, (key, key), {"value": value, "scale": 2}, mesh)
    assert query is key and set(rest) == {"value", "scale"} and rest["scale"] == 2
    assert keys.shape == rest["value"].shape == (3 * w.size,)
    (keys * 2).sum().backward()
    w.same(key.grad, torch.full_like(key, 2.0 * w.size))


@with_usual_options
def scope_without_balance(w):
    mesh = w.mesh()
    _cp_options.enable_load_balance = False
    positions = torch.arange(4 * w.size)
    with context_parallel(mesh, buffers=[positions], buffer_seq_dims=[0]):
        assert torch.equal(positions.to_local(), torch.arange(4 * w.rank, 4 * w.rank + 4))


def test_the_options_say_how_scopes_split(ranks):
    ranks(scope_without_balance)


def test_orders():
    head_tail = _HeadTailLoadBalancer(8, 2, "cpu")
    assert head_tail._generate_indices().tolist() == [[0, 1, 6, 7, 2, 3, 4, 5]]
    assert head_tail._generate_indices(restore=True).tolist() == [[0, 1, 4, 5, 6, 7, 2, 3]]
    documents = _PerDocumentHeadTailLoadBalancer([[4, 8], [8, 4]], 2, "cpu")
    order, back = documents._generate_indices(), documents._generate_indices(restore=True)
    assert order.tolist()[0] == [0, 3, 1, 2, 4, 5, 10, 11, 6, 7, 8, 9]
    assert order.gather(1, back).tolist() == [list(range(12))] * 2
    with pytest.raises(ValueError, match="multiple of twice the ranks long\n  length: 6, ranks: 2"):
        _HeadTailLoadBalancer(6, 2, "cpu")._generate_indices()


@with_usual_options
def samples_in_orders_of_their_own(w):
    mesh, quarter = w.mesh(), 2 * w.size
    balancer = _PerDocumentHeadTailLoadBalancer([[quarter, 3 * quarter], [2 * quarter, 2 * quarter]], w.size, "cpu")
    x = numbers(2, 3, 4 * quarter)
    (part,) = _context_parallel_shard(mesh, {"x": x}, {"x": 2}, balancer).values()
    order = balancer._generate_indices().chunk(w.size, dim=1)[w.rank]
    assert torch.equal(part, torch.stack([x[sample][:, order[sample]] for sample in range(2)]))
    (whole,) = context_parallel_unshard(mesh, [part], [2], balancer)
    w.same(whole, x)
    with pytest.raises(ValueError, match="has 2 orders, one a sample"):
        _context_parallel_shard(mesh, [x[:1]], [2], balancer)
    with pytest.raises(ValueError, match="got 1 buffers and 2 sequence dims"):
        _context_parallel_shard(mesh, [x], [2, 2], balancer)


def test_each_sample_may_have_an_order_of_its_own(ranks):
    ranks(samples_in_orders_of_their_own)


def test_blocks_are_dealt_to_ranks_by_their_work():
    work = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8])
    dealt = _PTRRLoadBalancer.ptrr_scheduling(work, 2)
    assert sorted(dealt.flatten().tolist()) == list(range(8))
    assert [int(work[row].sum()) for row in dealt] == [18, 18]
    with pytest.raises(NotImplementedError, match="8 blocks cannot be dealt to 3 ranks"):
        _PTRRLoadBalancer.ptrr_scheduling(work, 3)
    causal = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 1024, 1024, device="cpu")
    order = _PTRRLoadBalancer(causal, 2)._generate_indices()
    assert order.shape == (1, 1024) and order.unique().numel() == 1024
    several = create_block_mask(lambda b, h, q, k: q >= k + h, 1, 2, 256, 256, device="cpu")
    with pytest.raises(ValueError, match="the same for all heads"):
        _PTRRLoadBalancer(several, 2)._generate_indices()


@with_usual_options
def test_which_blocks_of_keys_are_seen():
    _cp_options.enable_load_balance = False
    steps = [[_is_causal_behavior(rank, 3, i, True) for i in range(3)] for rank in range(3)]
    whole, part, hidden = _CausalBehavior.NOT_IS_CAUSAL, _CausalBehavior.IS_CAUSAL, _CausalBehavior.SKIP
    assert steps == [[part, hidden, hidden], [part, whole, hidden], [part, whole, whole]]
    _cp_options.enable_load_balance = True
    assert [_is_causal_behavior(0, 3, i, True) for i in range(3)] == [part, whole, whole]
    assert _is_causal_behavior(0, 3, 0, False) == whole


def test_the_rotate_method_is_that_of_the_library():
    set_rotate_method("alltoall")
    assert _cp_options.rotate_method is _RotateMethod.ALL_TO_ALL
    _cp_options.rotate_method = _RotateMethod.ALL_GATHER
    assert meshtorch.context_parallel.get_rotate_method() == "allgather"
    set_rotate_method("auto")
    assert _cp_options.rotate_method is None
