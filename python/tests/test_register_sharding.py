"""register_sharding: placements that a program lists for an operator."""

import pytest
import torch
from meshtorch import DTensor, Replicate, Shard, distribute_tensor
from meshtorch.debug import CommDebugMode
from meshtorch.experimental import register_sharding


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


def run_by_listed_placements(w):
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


def test_an_operator_runs_as_listed(ranks):
    ranks(run_by_listed_placements)


def test_what_has_no_rule_of_its_own_is_refused():
    with pytest.raises(ValueError, match="does not run by a rule of its own"):
        register_sharding(torch.ops.aten.linear.default)(lambda *args: [])
