"""register_sharding: placements that a program lists for an operator."""

import pytest
import torch
from meshtorch import DTensor, Replicate, Shard, distribute_tensor
from meshtorch.debug import CommDebugMode
from meshtorch.experimental import register_sharding
from worlds import on_ranks


@torch.library.custom_op("meshtorch_test::flip_rows", mutates_args=())
def flip_rows(scale: float, x: torch.Tensor) -> torch.Tensor:
    return x.flip(1) * scale


@flip_rows.register_fake
def _(scale, x):
    return torch.empty_like(x)


@torch.library.custom_op("meshtorch_test::no_shape", mutates_args=())
def no_shape(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@register_sharding([torch.ops.meshtorch_test.flip_rows.default])
def flip_rows_sharding(scale, x):
    return [([Shard(dim)], [None, Shard(dim)]) for dim in range(x.ndim) if dim != 1]


@register_sharding(torch.ops.meshtorch_test.no_shape.default)
def no_shape_sharding(x):
    return [([Shard(0)], [Shard(0)])]


@on_ranks
def test_an_operator_runs_as_listed(w):
    x = torch.arange(30.0).view(5, 6)
    for dim, comms in ((0, 0), (1, 1)):
        d = distribute_tensor(x, w.mesh(), [Shard(dim)])
        with CommDebugMode() as comm:
            y = torch.ops.meshtorch_test.flip_rows(2.0, d)
        assert isinstance(y, DTensor) and comm.get_total_counts() == comms
        assert y.shape == (5, 6) and y.placements == ((Shard(0),) if dim == 0 else y.placements)
        w.same(y.full_tensor(), x.flip(1) * 2)
    with pytest.raises(NotImplementedError, match="register_fake"):
        torch.ops.meshtorch_test.no_shape(distribute_tensor(x, w.mesh(), [Shard(0)]))
    w.same(torch.ops.meshtorch_test.no_shape(distribute_tensor(x, w.mesh(), [Replicate()])).full_tensor(), x)


@register_sharding(torch.ops.aten.kthvalue.values)
def kthvalue_sharding(x, k, dim, keepdim, values, indices):
    others = [d for d in range(x.ndim) if d != dim % x.ndim]
    return [([Shard(d)] * 2, [Shard(d), None, None, None, Shard(d), Shard(d)]) for d in others]


@on_ranks
def test_an_out_variant_runs_as_listed(w):
    """An option of an out= variant names what is written too, and serves the others as well."""
    x = torch.sin(torch.arange(30.0)).view(5, 6)
    expected = torch.kthvalue(x, 2, 1, True)
    mesh = w.mesh()
    for placement in (Shard(0), Shard(1), Replicate()):
        d = distribute_tensor(x, mesh, [placement])
        out = tuple(distribute_tensor(torch.zeros_like(t), mesh, [Replicate()]) for t in expected)
        with CommDebugMode() as comm:
            results = torch.kthvalue(d, 2, 1, True)
        assert comm.get_total_counts() == (placement == Shard(1))
        torch.kthvalue(d, 2, 1, True, out=out)
        for result, written, value in zip(results, out, expected):
            w.same(result.full_tensor(), value)
            w.same(written.full_tensor(), value)


def test_what_has_no_rule_of_its_own_is_refused():
    with pytest.raises(ValueError, match="does not run by a rule of its own"):
        register_sharding(torch.ops.aten.linear.default)(lambda *args: [])
