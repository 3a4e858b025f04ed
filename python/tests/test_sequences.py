"""Tensors between meshes and ranks, and attention on split sequences."""

import meshtorch
import pytest
import torch
import torch.nn.functional as F
from meshtorch import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch.debug import CommDebugMode, explain_redistribute
from meshtorch.experimental import context_parallel, context_parallel_unshard, set_rotate_method
from torch import nn
from worlds import on_ranks


def numbers(*shape, seed=0):
    steps = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(steps * 0.7 + seed).view(shape)


@on_ranks
def test_a_tensor_leaves_its_mesh_and_comes_back(w):
    if w.kind == "fake":
        return  # PyTorch's fake group refuses an all-to-all to which a rank gives nothing
    first = DeviceMesh("cpu", [0, 1])
    second = DeviceMesh("cpu", list(reversed(range(w.size))))
    whole = numbers(5, 3)
    x = distribute_tensor(whole.clone().requires_grad_(), first, [Shard(0)], src_data_rank=None)
    y = x.redistribute(second, [Shard(1)])
    assert y.device_mesh == second and list(y.placements) == [Shard(1)]
    w.same(y.full_tensor(), whole)
    assert "mesh to mesh" in explain_redistribute(x, second, [Shard(1)])
    (y * 3).sum().backward()
    if w.rank < 2:
        w.same(x.grad.to_local(), torch.full_like(x.grad.to_local(), 3))
    back = y.detach().redistribute(device_mesh=first, placements=[Partial()])
    assert list(back.placements) == [Partial()]
    if w.rank < 2:
        w.same(back.full_tensor(), whole)


@on_ranks
def test_a_module_moves_to_another_mesh(w):
    first = DeviceMesh("cpu", [0, 1])
    second = DeviceMesh("cpu", [1, 0])
    linear = nn.Linear(4, 6, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(numbers(6, 4))
        linear.bias.zero_()
    with pytest.raises(ValueError, match="move_module met a plain tensor"):
        meshtorch.move_module(linear, second)
    meshtorch.distribute_module(linear, first)
    weight = linear.weight
    meshtorch.move_module(linear, second, lambda name, _: [Shard(0)])
    assert linear.weight is weight and weight.device_mesh == second and list(weight.placements) == [Shard(0)]
    if w.rank < 2:
        w.same(weight.full_tensor(), numbers(6, 4))


def messages(w):
    if w.kind == "fake":
        return
    after, before = (w.rank + 1) % w.size, (w.rank - 1) % w.size
    x = numbers(3, seed=w.rank).requires_grad_()
    with CommDebugMode() as comm:
        (y,), _ = meshtorch.batch_send_recv([(x * 2, after)], [(torch.empty_like(x).requires_grad_(), before)])
    assert sorted(comm.get_comm_counts().values()) == [1, 1]
    w.same(y, 2 * numbers(3, seed=before))
    (y * (w.rank + 1)).sum().backward()
    w.same(x.grad, torch.full_like(x, 2.0 * (after + 1)))
    if w.rank == 0:
        meshtorch.send(torch.arange(4), 1, tag=7)
    if w.rank == 1:
        w.same(meshtorch.recv(torch.empty(4, dtype=torch.int64), 0, tag=7), torch.arange(4))


def test_messages_and_their_gradients(ranks):
    ranks(messages)


@on_ranks
def test_attention_on_split_sequences(w):
    mesh = w.mesh()
    plain = [numbers(2, 4, 12, 8, seed=s).requires_grad_() for s in (1, 2, 3)]
    expected = F.scaled_dot_product_attention(*plain, is_causal=True)
    expected.square().sum().backward()
    for method in ("allgather", "alltoall", "auto"):
        if w.kind == "fake" and method == "alltoall":
            continue
        set_rotate_method(method)
        split = [
            distribute_tensor(t.detach().clone().requires_grad_(), mesh, [Shard(2)], src_data_rank=None) for t in plain
        ]
        out = F.scaled_dot_product_attention(*split, is_causal=True)
        assert list(out.placements) == [Shard(2)]
        out.square().sum().backward()
        w.same(out.full_tensor(), expected)
        for one, whole in zip(split, plain):
            w.same(one.grad.full_tensor(), whole.grad)
    set_rotate_method("auto")
    with pytest.raises(ValueError, match="unknown rotate method"):
        set_rotate_method("somehow")


@on_ranks
def test_a_context_parallel_scope_splits_its_buffers(w):
    mesh = w.mesh()
    x = numbers(2, 4 * w.size, 8)
    whole = x.clone()

    def attend(t):
        heads = t.unflatten(2, (2, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)

    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
        assert isinstance(x, DTensor) and list(x.placements) == [Shard(1)]
        out = attend(x)
        (unsharded,) = context_parallel_unshard(mesh, [out], [1])
    w.same(unsharded, attend(whole))
    assert not isinstance(x, DTensor)
    w.same(x, whole)


def ring_in_a_scope(w, is_causal, load_balance, method, forward_only):
    mesh = w.mesh()
    set_rotate_method(method)
    plain = [numbers(2, 4, 4 * w.size, 8, seed=s).requires_grad_() for s in (1, 2, 3)]
    expected = F.scaled_dot_product_attention(*plain, is_causal=is_causal)
    expected.sum().backward()
    split = [t.detach().clone() for t in plain]
    with context_parallel(mesh, buffers=split, buffer_seq_dims=(2, 2, 2), load_balance=load_balance):
        for t in split:
            t.requires_grad = not forward_only
        with CommDebugMode() as comm:
            out = F.scaled_dot_product_attention(*split, is_causal=is_causal)
            if not forward_only:
                out.sum().backward()
        (whole,) = context_parallel_unshard(mesh, [out.detach()], [2], load_balance)
        gradients = [] if forward_only else [t.grad for t in split]
        gradients = context_parallel_unshard(mesh, gradients, [2] * len(gradients), load_balance)
        for t in split:
            t.requires_grad = False
    w.same(whole, expected)
    for one, t in zip(gradients, plain):
        w.same(one, t.grad)
    if method == "alltoall":  # as many messages as PyTorch's rotater sends
        assert sum(comm.get_comm_counts().values()) == 2 * (w.size - 1 if forward_only else 3 * w.size - 2)
    set_rotate_method("auto")


@on_ranks
def test_ring_attention_in_a_scope(w):
    for is_causal, load_balance in ((True, True), (True, False), (False, False)):
        for method in ("alltoall", "allgather"):
            if w.kind == "fake":
                continue
            for forward_only in (True, False):
                ring_in_a_scope(w, is_causal, load_balance, method, forward_only)


@on_ranks
def test_buffers_of_a_scope_are_pieces_from_the_front_and_the_back(w):
    mesh = w.mesh()
    length = 4 * w.size
    positions = torch.arange(length)
    expanded = torch.arange(length).expand(3, length)
    kept, kept_expanded = positions.clone(), expanded.clone()
    pieces = kept.chunk(2 * w.size)
    mine = torch.cat([pieces[w.rank], pieces[2 * w.size - w.rank - 1]])
    with context_parallel(mesh, buffers=[positions, expanded], buffer_seq_dims=[0, 1]):
        assert torch.equal(positions.to_local(), mine)
        assert torch.equal(expanded.to_local(), mine.expand(3, 4))
    assert torch.equal(positions, kept) and torch.equal(expanded, kept_expanded)


@on_ranks
def test_a_scope_keeps_the_other_axes_of_its_buffers(w):
    if w.size != 4:
        return
    mesh = meshtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    x = numbers(4, 8, 8)
    batch = distribute_tensor(x.clone(), mesh, [Shard(0), Replicate()], src_data_rank=None)

    def attend(t):
        heads = t.unflatten(2, (2, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)

    with context_parallel(mesh["cp"], buffers=[batch], buffer_seq_dims=[1]):
        assert list(batch.placements) == [Shard(0), Shard(1)]
        loss = attend(batch).square().sum().full_tensor()
    w.same(loss, attend(x).square().sum())
    assert list(batch.placements) == [Shard(0), Replicate()]
