"""What a program that was written for PyTorch's DTensor does here by a change of imports: vmap, memory formats, torch.compile, FSDP2."""

import warnings

import meshtorch
import pytest
import torch
import torch.distributed.fsdp
import torch.nn.functional as F
from meshtorch import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch.debug import CommDebugMode
from meshtorch.functional_collectives import batch_p2p_ops_inplace
from meshtorch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch import nn
from worlds import filled, on_gloo_ranks, on_ranks


@on_ranks
def test_vmap_of_distributed_tensors(w):
    ids, tables = torch.arange(24).view(4, 6) % 8, torch.sin(torch.arange(4 * 8 * 3.0)).view(4, 8, 3)
    x, weight = torch.sin(torch.arange(20.0)).view(4, 5), torch.cos(torch.arange(60.0)).view(4, 5, 3)
    for placement in (Shard(0), Replicate()):
        place = lambda t: distribute_tensor(t, w.mesh(), [placement])  # noqa: E731
        if w.kind != "fake":  # where indices that were never sent are any numbers
            result = torch.vmap(F.embedding)(place(ids), place(tables))
            w.same(result.full_tensor(), torch.vmap(F.embedding)(ids, tables))
        w.same(torch.vmap(torch.matmul)(place(x), place(weight)).full_tensor(), torch.vmap(torch.matmul)(x, weight))
        w.same(torch.vmap(lambda a: a.softmax(0).sum())(place(x)).full_tensor(), torch.ones(4))


@on_ranks
def test_a_tensor_keeps_its_order_of_dims_in_memory(w):
    plain = torch.sin(torch.arange(2 * 3 * 9 * 4.0)).view(2, 3, 9, 4).to(memory_format=torch.channels_last)
    for placement in (Shard(2), Shard(0), Replicate()):  # of 9 rows over 4 ranks the last has none
        x = distribute_tensor(plain.clone().requires_grad_(), w.mesh(), [placement])
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert x.to_local().is_contiguous(memory_format=torch.channels_last)
        w.same(x.full_tensor(), plain)
        (x.to_local() * 2).sum().backward()
        assert x.grad._local_tensor.is_contiguous(memory_format=torch.channels_last)
    column_major = torch.arange(12.0).view(3, 4).t()
    x = distribute_tensor(column_major, w.mesh(), [Shard(0)])
    assert x.stride() == column_major.stride() and x.to_local().stride(0) == 1
    w.same(x.full_tensor(), column_major)


@on_ranks
def test_a_rank_outside_a_mesh_holds_a_zero_of_a_tensor_without_dims(w):
    mesh = DeviceMesh("cpu", [0, 2])
    total = DTensor.from_local(torch.ones(4, 3), mesh, [Shard(0)]).sum()
    parts = DTensor.from_local(torch.ones(3, 4), mesh, [Shard(0)]).split([2, 2], dim=1)
    if w.rank in (0, 2):
        w.same(total.full_tensor(), torch.tensor(24.0))
    else:
        assert torch.equal(total.to_local(), torch.tensor(0.0))
        assert [part.to_local().numel() for part in parts] == [0, 0]


@on_ranks
def test_as_strided_is_the_view_that_its_strides_say(w):
    plain = torch.arange(48.0).view(6, 8)
    cases = {
        "itself": ((6, 8), (8, 1), 0),
        "flattened": ((48,), (1,), 0),
        "cut": ((3, 2), (16, 3), 9),
        "turned": ((8, 6), (1, 8), 0),
        "a column": ((6,), (8,), 5),
        "repeated": ((6, 2, 8), (8, 0, 1), 0),
        "a diagonal": ((6,), (9,), 0),
        "windows": ((9, 6), (5, 1), 2),
        "nothing": ((0, 3), (1, 1), 4),
    }
    for placement in (Shard(0), Shard(1), Replicate(), Partial()):
        x = distribute_tensor(plain, w.mesh(), [placement]).requires_grad_()
        expected = plain.clone().requires_grad_()
        for sizes, strides, offset in cases.values():
            y, z = x.as_strided(sizes, strides, offset), expected.as_strided(sizes, strides, offset)
            w.same(y.full_tensor(), z)
            x.grad = expected.grad = None
            (y * y).sum().backward()
            (z * z).sum().backward()
            w.same(x.grad.full_tensor(), expected.grad)
            w.same(torch.as_strided_copy(x, sizes, strides, offset).full_tensor(), z)


@on_ranks
def test_strided_views_share_what_is_written(w):
    for placement in (Shard(0), Shard(1), Replicate(), Partial()):
        plain = torch.arange(48.0).view(6, 8)
        x = distribute_tensor(plain, w.mesh(), [placement]).t()
        expected = plain.clone().t()
        diagonal, expected_diagonal = x.as_strided((6,), (9,)), expected.as_strided((6,), (9,))
        diagonal.mul_(2), expected_diagonal.mul_(2)
        w.same(x.full_tensor(), expected)
        x.add_(1), expected.add_(1)
        w.same(diagonal.full_tensor(), expected_diagonal)
        ones = distribute_tensor(torch.ones(6), w.mesh(), [Shard(0)])
        written = torch.as_strided_scatter(x, ones, (6,), (9,), 1)
        w.same(written.full_tensor(), torch.as_strided_scatter(expected, torch.ones(6), (6,), (9,), 1))


@on_ranks
def test_resize_takes_the_elements_in_the_order_in_which_they_lie(w):
    for placement in (Shard(0), Shard(1), Replicate(), Partial()):
        for sizes in ((8, 6), (5, 4), (10, 8), (0,), (), (2, 3, 2, 4)):
            plain = torch.arange(48.0).view(6, 8)
            x, expected = distribute_tensor(plain, w.mesh(), [placement]), plain.clone()
            x.resize_(sizes), expected.resize_(sizes)
            assert x.shape == expected.shape and x.stride() == expected.stride()
            known = min(48, expected.numel())  # what is new has any values
            w.same(x.full_tensor().flatten()[:known], expected.flatten()[:known])
            x.resize_as_(plain)
            assert x.shape == plain.shape
    row = distribute_tensor(torch.arange(48.0).view(6, 8), w.mesh(), [Shard(0)])[1]
    with pytest.raises(NotImplementedError, match="to more elements, of a tensor that has views"):
        row.resize_(3, 4)


@on_gloo_ranks(size=2)
def test_a_compiled_function_of_distributed_tensors_runs_uncompiled_with_one_warning(w):
    import meshtorch._compile as compile_

    compile_._has_warned = False
    torch._dynamo.reset()
    plain = torch.sin(torch.arange(24.0)).view(4, 6)
    x, weight = (distribute_tensor(plain, w.mesh(), [Shard(0)]).requires_grad_() for _ in range(2))

    def loss(a, b):
        c = torch.relu(a @ b.t())
        return (c * 2).sum()

    fast = torch.compile(loss, backend="eager")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            value = fast(x, weight)
    ours = [str(one.message) for one in seen if "meshtorch" in str(one.message)]
    assert len(ours) == 1 and "leaves functions of distributed tensors as they are" in ours[0]
    w.same(value.full_tensor(), loss(plain, plain))
    value.backward()
    assert isinstance(x.grad, DTensor) and x.grad.shape == x.shape
    module = torch.compile(filled(nn.Linear(6, 3)), backend="eager")
    w.same(module(plain), module._orig_mod(plain))
    with pytest.raises(Exception, match="leaves functions of distributed tensors"):
        torch.compile(lambda a: a * 2, backend="eager", fullgraph=True)(x)


@on_gloo_ranks(size=2)
def test_a_compiled_function_that_makes_distributed_tensors_gives_one_warning(w):
    import meshtorch._compile as compile_

    compile_._has_warned = False
    torch._dynamo.reset()
    mesh = w.mesh()

    def product(a):
        split = distribute_tensor(a.sin(), mesh, [Shard(0)])
        return (split @ split.t()).full_tensor()

    plain = torch.arange(24.0).view(4, 6)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        w.same(torch.compile(product, backend="eager")(plain), plain.sin() @ plain.sin().t())
    words = [str(one.message) for one in seen if "meshtorch" in str(one.message) or "Dynamo" in str(one.message)]
    assert len(words) == 1 and "leaves functions of distributed tensors as they are" in words[0]


class Mlp(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


@on_ranks
def test_fully_shard_of_torch_on_a_mesh_of_meshtorch_is_meshtorchs(w):
    mesh = w.mesh(2, 2, names=("dp", "tp"))
    plain, split = filled(Mlp()), filled(Mlp())
    parallelize_module(split, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    policy = torch.distributed.fsdp.MixedPrecisionPolicy()
    torch.distributed.fsdp.fully_shard(split, mesh=mesh["dp"], mp_policy=policy)
    assert all(isinstance(p, DTensor) and len(p.placements) == 2 for p in split.parameters())
    batch = torch.sin(torch.arange(4 * 8.0)).view(4, 8)
    w.same(split(batch), plain(batch))
    split(batch).sum().backward()
    plain(batch).sum().backward()
    for ours, expected in zip(split.parameters(), plain.parameters()):
        w.same(ours.grad.full_tensor(), expected.grad)


@on_ranks
def test_messages_in_a_batch_fill_the_tensors_given(w):
    if w.kind == "fake":
        return
    after, before = (w.rank + 1) % w.size, (w.rank - 1) % w.size
    mine, theirs = torch.full((3,), float(w.rank)), torch.zeros(3)
    results = batch_p2p_ops_inplace(["isend", "irecv"], [after, before], [0, 0], [mine, theirs])
    assert results[1] is theirs and results[0].numel() == 0
    w.same(theirs, torch.full((3,), float(before)))
    with pytest.raises(ValueError, match='do: give one of each for every message, "isend" or "irecv"'):
        batch_p2p_ops_inplace(["send"], [after], [0], [mine])


@on_ranks
def test_pending_maxima_stay_pending(w):
    """As in PyTorch, and by the same names."""
    x = DTensor.from_local(torch.sin(torch.arange(6.0) + w.rank).view(2, 3), w.mesh(), [Partial("max")])
    limits = distribute_tensor(torch.tensor([0.1, 0.5]), w.mesh(), [Replicate()])
    with CommDebugMode() as comm:
        y = torch.bucketize(torch.relu(x), limits)
    assert comm.get_total_counts() == 0 and y.placements[0] == Partial("max")
    whole = meshtorch.DTensor.full_tensor(x)
    w.same(y.full_tensor(), torch.bucketize(torch.relu(whole), torch.tensor([0.1, 0.5])))
