"""torch's modes on distributed tensors: inference, autocast, and random states that programs restore."""

import pytest
import torch
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from worlds import on_ranks


def pending(w, tensor):
    share = tensor if w.rank == 0 else torch.zeros_like(tensor)
    return DTensor.from_local(share, w.mesh(), [Partial()])


@on_ranks
def test_composite_operators_in_inference_mode(w):
    x, weight = torch.linspace(-1, 1, 20).view(5, 4), torch.linspace(-2, 1, 12).view(3, 4)
    d_weight = distribute_tensor(weight, w.mesh(), [Shard(0)])
    with torch.inference_mode():
        heads = x.view(1, 1, 5, 4)
        for d in (*(distribute_tensor(x, w.mesh(), [p]) for p in (Replicate(), Shard(0), Shard(1))), pending(w, x)):
            w.same(F.linear(d, d_weight).full_tensor(), F.linear(x, weight))
            w.same((d.t() @ d).full_tensor(), x.t() @ x)
            d_heads = d.view(1, 1, 5, 4)
            attention = F.scaled_dot_product_attention(d_heads, d_heads, d_heads, is_causal=True)
            w.same(attention.full_tensor(), F.scaled_dot_product_attention(heads, heads, heads, is_causal=True))


@on_ranks
def test_normalization_in_half_types_and_autocast(w):
    x = torch.linspace(-2, 3, 30).view(5, 6)
    for dtype in (torch.bfloat16, torch.float16):
        plain = x.to(dtype)
        weight = torch.linspace(0.5, 1.5, 6).to(dtype)
        d_weight = distribute_tensor(weight, w.mesh(), [Replicate()])
        for placement in (Replicate(), Shard(0), Shard(1)):
            d = distribute_tensor(plain, w.mesh(), [placement]).requires_grad_()
            tolerance = {"rtol": 0.02, "atol": 0.02}
            w.same(F.layer_norm(d, (6,), d_weight).full_tensor(), F.layer_norm(plain, (6,), weight), **tolerance)
            w.same(F.layer_norm(d, (6,)).full_tensor(), F.layer_norm(plain, (6,)), **tolerance)
            normalized = F.batch_norm(d, None, None, d_weight, None, True)
            w.same(normalized.full_tensor(), F.batch_norm(plain, None, None, weight, None, True), **tolerance)
            (F.layer_norm(d, (6,), d_weight).sum() + normalized.sum()).backward()
            assert d.grad.dtype == dtype
    d = distribute_tensor(x, w.mesh(), [Shard(0)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.layer_norm(F.linear(d, d), (5,)).dtype == F.layer_norm(F.linear(x, x), (5,)).dtype


@on_ranks
def test_checkpointing_repeats_the_numbers_of_dropout(w):
    for placement in (Replicate(), Shard(0)):
        for use_reentrant in (False, True):
            x = distribute_tensor(torch.ones(40, 5), w.mesh(), [placement]).requires_grad_()
            y = checkpoint(lambda x: F.dropout(x * 2, 0.5), x, use_reentrant=use_reentrant)
            after = F.dropout(x, 0.5)
            y.sum().backward()
            w.same(x.grad.full_tensor(), y.full_tensor())  # 4 where it was kept, 0 elsewhere: the gradient of x * 2
            assert w.kind == "fake" or not torch.equal(after.full_tensor(), F.dropout(x, 0.5).full_tensor())


@on_ranks
def test_random_states_of_torch_hold_those_of_distributed_tensors(w):
    x = distribute_tensor(torch.ones(40), w.mesh(), [Shard(0)])
    state = torch.get_rng_state()
    assert state.shape == torch.Generator().get_state().shape  # files with it are read everywhere
    first, plain = F.dropout(x, 0.5).full_tensor(), torch.rand(3)
    torch.set_rng_state(state)
    w.same(F.dropout(x, 0.5).full_tensor(), first)
    w.same(torch.rand(3), plain)
    with torch.random.fork_rng(devices=[]):
        inside = F.dropout(x, 0.5).full_tensor()
    w.same(F.dropout(x, 0.5).full_tensor(), inside)
    last = F.dropout(x, 0.5).full_tensor()
    torch.set_rng_state(torch.Generator().manual_seed(1).get_state())  # says nothing of distributed numbers
    assert w.kind == "fake" or not torch.equal(F.dropout(x, 0.5).full_tensor(), last)


@on_ranks
def test_recurrent_cells_start_from_zeros(w):
    x = torch.linspace(-1, 1, 12).view(3, 4)
    for make in (nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda i, h: nn.RNNCell(i, h, nonlinearity="relu")):
        cell, plain = make(4, 6), make(4, 6)
        plain.load_state_dict(cell.state_dict())
        for p in cell.parameters():
            p.data = distribute_tensor(p.data, w.mesh(), [Replicate()], src_data_rank=None)
        found, expected = cell(distribute_tensor(x, w.mesh(), [Shard(0)])), plain(x)
        for f, e in zip(found, expected) if isinstance(expected, tuple) else [(found, expected)]:
            w.same(f.full_tensor(), e)


def test_modes_leave_plain_tensors_alone():
    with torch.inference_mode():
        assert F.linear(torch.ones(2, 2), torch.ones(2, 2)).tolist() == [[2, 2], [2, 2]]
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    assert first.tolist() == pytest.approx(torch.rand(3).tolist())
