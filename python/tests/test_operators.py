"""Operators on distributed tensors: types, shapes and errors are those of plain ones; a user's own operators."""

import meshtorch
import pytest
import torch
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from meshtorch.debug import CommDebugMode
from torch import nn
from worlds import on_gloo_ranks, on_ranks


@on_ranks
def test_ranks_compute_one_type(w):
    x = torch.sin(torch.arange(125.0)).view(5, 5, 5)
    mask = torch.arange(25).view(5, 5) % 3 > 0
    mesh = w.mesh()
    dx, dm = (distribute_tensor(t, mesh, [Shard(0)]) for t in (x, mask))
    for correction in (-5, 1):
        result = torch.masked.var(dx, mask=dm, correction=correction)
        w.same(result.full_tensor(), torch.masked.var(x, mask=mask, correction=correction))


@on_ranks
def test_shapes_that_depend_on_data_are_those_of_each_call(w):
    mesh = w.mesh()
    for values in ([1, 1, 2, 0], [1, 2, 3, 4], [0, 0, 0, 0]):
        whole = torch.tensor(values)
        x = distribute_tensor(whole, mesh, [Shard(0)])
        for call in (torch.unique, torch.unique_consecutive, torch.nonzero, torch.argwhere):
            if w.kind != "fake":  # where nothing is communicated, the data is not that of the whole
                w.same(call(x).full_tensor(), call(whole))


torch.library.define("meshtorch_tests::with_row_numbers", "(Tensor x) -> Tensor")


def with_row_numbers(x):
    return x + torch.arange(x.size(0), dtype=x.dtype).unsqueeze(1)


torch.library.impl("meshtorch_tests::with_row_numbers", "CompositeImplicitAutograd")(with_row_numbers)


@on_ranks
def test_own_composite_operators_decompose(w):
    whole = torch.sin(torch.arange(20.0)).view(5, 4)
    x = distribute_tensor(whole, w.mesh(), [Shard(0)]).requires_grad_()
    y = torch.ops.meshtorch_tests.with_row_numbers(x)
    w.same(y.full_tensor(), with_row_numbers(whole))
    y.sum().backward()
    w.same(x.grad.full_tensor(), torch.ones(5, 4))


@on_ranks
def test_optimizers_step_over_parameters_of_several_meshes(w):
    mesh = w.mesh(2, 2, names=("a", "b"))
    whole = [torch.sin(torch.arange(12.0) + i).view(4, 3) for i in range(4)]
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        plain = [nn.Parameter(t.clone()) for t in whole]
        placed = [nn.Parameter(distribute_tensor(t, mesh["ab"[i % 2]], [Shard(0)])) for i, t in enumerate(whole)]
        for parameters in (plain, placed):
            optimizer = torch.optim.AdamW(parameters, lr=0.1, **options)
            for _ in range(2):
                for p in parameters:
                    p.grad = (p * p).detach()
                optimizer.step()
        for p, expected in zip(placed, plain):
            w.same(p.full_tensor(), expected)


@on_ranks
def test_values_that_torch_refuses_are_refused(w):
    mesh = w.mesh()
    table = distribute_tensor(torch.ones(5, 3), mesh, [Shard(0)])
    with pytest.raises(IndexError, match="index out of range"):
        nn.functional.embedding(distribute_tensor(torch.tensor([0, 7]), mesh, [Replicate()], src_data_rank=None), table)
    with pytest.raises(ValueError, match="no tensor has a dim 4294967296"):
        Shard(2**32)
    if w.kind != "fake":
        with pytest.raises(ValueError, match="below 0 or above 1"):
            torch.bernoulli(distribute_tensor(torch.tensor([0.5, 7.0]), mesh, [Shard(0)]))
    with pytest.raises(RuntimeError, match="got a plain tensor beside distributed ones"):
        torch.equal(table, torch.ones(5, 3))


@on_ranks
def test_operators_that_torch_makes_in_python_stay_split(w):
    x, y = torch.linspace(0.1, 0.9, 48).view(12, 4), torch.linspace(0.9, 0.2, 48).view(12, 4)
    mesh = w.mesh()
    dx, dy = (distribute_tensor(t, mesh, [Shard(0)]) for t in (x, y))
    prims = torch.ops.prims
    for op, count in ((prims.bessel_i0e, 1), (prims.ndtri, 1), (prims.view_of, 1), (prims.div, 2), (prims.ne, 2)):
        with CommDebugMode() as comm:
            result = op(*(dx, dy)[:count])
        assert result.placements == (Shard(0),) and comm.get_total_counts() == 0, op
        w.same(result.full_tensor(), op(*(x, y)[:count]))


@on_ranks
def test_multinomial_stays_split_and_samples_alike(w):
    weights = torch.tensor([[0.0, 1.0, 3.0], [2.0, 0.0, 2.0], [0.0, 0.0, 5.0], [1.0, 1.0, 0.0]]).repeat(250, 1)
    mesh = w.mesh()
    for replacement, count in ((True, 4), (False, 1), (False, 2)):
        if count == 2:
            weights = weights + 1e-3
        drawn = []
        for placement in (Shard(0), Replicate(), Shard(1)):
            meshtorch.manual_seed(3)
            result = torch.multinomial(distribute_tensor(weights, mesh, [placement]), count, replacement)
            assert result.placements == ((Shard(0),) if placement == Shard(0) else (Replicate(),))
            drawn.append(result.full_tensor())
        if w.kind == "fake":
            continue
        w.same(drawn[1], drawn[0])  # the same samples however the weights lie
        w.same(drawn[2], drawn[0])
        assert weights.gather(1, drawn[0]).min() > 0
        share = (drawn[0][0::4, :1] == 2).double().mean().item()
        assert 0.65 < share < 0.85, share  # 3 of 4, of 250 rows
        if not replacement and count == 2:
            assert (drawn[0][:, 0] != drawn[0][:, 1]).all()
    for wrong in (torch.tensor([[1.0, -1.0]] * 4), torch.zeros(4, 2)):
        if w.kind != "fake":
            with pytest.raises(RuntimeError, match="probability tensor contains|sum of probabilities <= 0"):
                torch.multinomial(distribute_tensor(wrong, mesh, [Shard(0)]), 1)


@on_ranks
def test_plain_sizes_and_ranks_outside_a_mesh_are_compared(w):
    x = distribute_tensor(torch.ones(4, 4), w.mesh(), [Shard(0)])
    assert torch.ones(4, 4).is_same_size(x) and not x.is_same_size(torch.ones(4))
    part = meshtorch.DeviceMesh("cpu", [0, 1])
    a, b = (distribute_tensor(torch.ones(4, 3), part, [Shard(0)]) for _ in range(2))
    assert a.equal(b)  # on ranks outside the mesh too


@on_ranks
def test_squeeze_and_views_leave_split_dims(w):
    mesh = w.mesh()
    x = distribute_tensor(torch.arange(12.0).view(4, 1, 3), mesh, [Shard(0)])
    with CommDebugMode() as comm:
        for result, shape in ((x.squeeze(0), (4, 1, 3)), (x.squeeze(1), (4, 3)), (x.squeeze((0, 1)), (4, 3))):
            assert result.shape == shape and result.placements == (Shard(0),)
        one = distribute_tensor(torch.ones(1, 2, 2), mesh, [Shard(0)], src_data_rank=None)
        assert one.view(1, 4).placements == (Shard(0),)
    assert comm.get_total_counts() == 0


@on_ranks
def test_what_is_not_set_lies_as_its_model(w):
    mesh = w.mesh()
    pending = DTensor.from_local(torch.ones(4, 3), mesh, [Partial()])
    for unset in (torch.empty_like(pending), pending.new_empty(4, 3), pending.new_empty_strided((4, 3), (3, 1))):
        assert unset.placements == (Partial(),)
    assert torch.ones_like(pending).placements == pending.new_zeros(4, 3).placements == (Replicate(),)


@on_ranks
def test_gradients_of_to_local_keep_the_memory_format(w):
    x = torch.ones(2, 3, 2, 4).to(memory_format=torch.channels_last)
    dx = DTensor.from_local(x, w.mesh(), [Shard(2)]).requires_grad_()
    (dx.to_local() * 2).sum().backward()
    assert dx.grad.to_local().is_contiguous(memory_format=torch.channels_last)


@on_ranks
def test_calls_on_split_rows_leave_them_where_they_are(w):
    whole = torch.sin(torch.arange(48.0)).view(8, 6).abs() + 0.1
    x = distribute_tensor(whole, w.mesh(), [Shard(0)])
    aten, prims = torch.ops.aten, torch.ops.prims
    for call, placement in [
        (lambda t: prims.sin(t), Shard(0)),
        (lambda t: prims.mul(t, t), Shard(0)),
        (lambda t: prims.maximum(t, t), Shard(0)),
        (lambda t: aten.linalg__powsum(t, 2.0), Partial()),
        (lambda t: aten.linalg__powsum(t, 2.0, [1]), Shard(0)),
        (lambda t: aten.linalg__powsum(t, 3.0, [0], True), Partial()),
        (lambda t: aten._foreach_powsum([t, t], 2.0)[1], Partial()),
        (lambda t: torch.fft.rfft(t, dim=1), Shard(0)),
        (lambda t: t[:, 2:4], Shard(0)),
    ]:
        with CommDebugMode() as comm:
            y = call(x)
        assert comm.get_total_counts() == 0 and y.placements == (placement,)
        w.same(y.full_tensor(), call(whole))
    with CommDebugMode() as comm:
        drawn = torch.multinomial(x, 2)
    # Where there are others, ranks agree by two numbers whether a row is wrong: all raise, or none.
    assert comm.get_total_counts() == (0 if w.kind == "fake" else 1)
    assert drawn.placements == (Shard(0),) and drawn.shape == (8, 2)


@on_ranks
def test_slices_know_their_offset(w):
    x = distribute_tensor(torch.arange(24.0).view(6, 4), w.mesh(), [Replicate()])
    plain = torch.arange(24.0).view(6, 4)
    for part in (slice(1, None), (slice(None), slice(2, None)), (slice(2, None), slice(1, 3))):
        assert x[part].storage_offset() == plain[part].storage_offset()
    assert x.storage_offset() == 0


@on_gloo_ranks
def test_forward_derivatives_of_a_product_with_one_tangent(w):
    x, direction, weight = (torch.sin(torch.arange(n * 1.0) ** 2).double() for n in (5, 5, 20))
    weight = weight.view(5, 4)

    def curved(x, weight):
        return ((x @ weight).tanh() ** 2).sum()

    mesh = w.mesh()
    for dims in ((0, 0), (0, 1)):
        splits = [distribute_tensor(t, mesh, [Shard(dim)]) for t, dim in zip((x, weight), dims)]
        tangent = distribute_tensor(direction, mesh, [Shard(0)])
        actual = torch.func.jvp(lambda x: curved(x, splits[1]), (splits[0],), (tangent,))
        for one, plain in zip(actual, torch.func.jvp(lambda x: curved(x, weight), (x,), (direction,))):
            w.same(one.full_tensor(), plain)
        w.same(torch.func.hessian(curved)(*splits).full_tensor(), torch.func.hessian(curved)(x, weight))


@on_ranks
def test_one_number_may_stand_for_many(w):
    x = distribute_tensor(torch.arange(12.0).view(4, 3), w.mesh(), [Shard(0)])
    w.same((x * torch.tensor(2.0).expand(4, 3)).full_tensor(), torch.arange(12.0).view(4, 3) * 2)
    with pytest.raises(RuntimeError, match="got a plain tensor beside distributed ones"):
        x * torch.ones(4, 1).expand(4, 3)


def outcome(call):
    try:
        return call()
    except RuntimeError:
        return None


def placements_of(t):
    return [[Replicate()], [Partial()], *([Shard(dim)] for dim in range(t.dim()))]


@on_ranks(size=2)
def test_what_expand_repeats_is_filled_under_every_layout(w):
    mesh = w.mesh()
    for shape, repeated in (((3, 1), (3, 4)), ((1, 3), (4, 3)), ((), (3,)), ((1, 1), (2, 3)), ((5,), (2, 5))):
        for name, write in {"fill_": lambda t: t.fill_(2.0), "zero_": lambda t: t.zero_(), "add_": lambda t: t.add_(1)}.items():
            t = torch.arange(5.0)[: torch.Size(shape).numel()].reshape(shape)
            plain = t.clone()
            is_right = outcome(lambda: write(plain.expand(repeated))) is not None
            for placements in placements_of(t):
                x = distribute_tensor(t, mesh, placements)
                assert (outcome(lambda: write(x.expand(repeated))) is not None) == is_right, (name, shape, placements)
                w.same(x.full_tensor(), plain, msg=f"{name} {shape} {placements}")


@on_ranks(size=2)
def test_norms_of_whole_numbers_are_refused_as_plain_ones_are(w):
    mesh, t = w.mesh(), torch.arange(6).reshape(3, 2) - 2
    for p in (0, 1, 2, 3, float("inf"), -float("inf")):
        for norm in (
            lambda t: t.norm(p),
            lambda t: t.norm(p, 0),
            lambda t: torch.linalg.vector_norm(t, p),
            lambda t: torch.linalg.vector_norm(t, p, 1, True),
            lambda t: torch.linalg.vector_norm(t, p, dtype=torch.float64),
            lambda t: torch.norm(t, p, dtype=torch.float64),
            lambda t: torch._foreach_norm([t], p)[0],
        ):
            expected = outcome(lambda: norm(t))
            for placements in placements_of(t):
                x = distribute_tensor(t, mesh, placements)
                actual = outcome(lambda: norm(x))
                assert (actual is None) == (expected is None), (p, placements)
                if expected is not None:
                    w.same(actual.full_tensor(), expected)


@on_ranks
def test_gradients_on_several_meshes_are_clipped_by_the_norm_of_all(w):
    """One mesh, a flattened one beside the 2-D one, dense and expert meshes, plain parameters beside each."""
    dense = w.mesh(2, 2, names=("dp", "tp"))
    flat, experts = dense._flatten("all"), w.mesh(1, 4, names=("efsdp", "ep"))
    places = {
        "one": [(dense, (Shard(0), Shard(1))), (dense, (Replicate(), Shard(0))), None],
        "flat": [(dense, (Shard(0), Replicate())), (flat, (Shard(1),)), None],
        "experts": [(experts, (Replicate(), Shard(0))), (dense, (Shard(0), Shard(0))), (flat, (Partial(),))],
        "an axis": [(dense["tp"], (Shard(0),)), (dense["dp"], (Shard(1),)), (dense["tp"], (Replicate(),)), None],
    }
    for name, lies in places.items():
        for p in (1.0, 2.0, float("inf")):
            for foreach in (None, False):
                distributed, plain = [], []
                for number, place in enumerate(lies):
                    values = torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3) * (number + 1)
                    plain.append(torch.nn.Parameter(values.clone()))
                    plain[-1].grad = values.sin()
                    put = (lambda t: t.clone()) if place is None else (lambda t: distribute_tensor(t, *place))
                    distributed.append(torch.nn.Parameter(put(values)))
                    distributed[-1].grad = put(values.sin())
                expected = torch.nn.utils.clip_grad_norm_(plain, 0.5, p)
                actual = torch.nn.utils.clip_grad_norm_(distributed, 0.5, p, foreach=foreach)
                whole = lambda t: t.full_tensor() if isinstance(t, DTensor) else t
                w.same(whole(actual), expected, msg=f"{name} {p} {foreach}")
                for one, other in zip(distributed, plain):
                    w.same(whole(one.grad), other.grad, msg=f"{name} {p} {foreach}")
