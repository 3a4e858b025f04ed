"""New distributed tensors: sizes in the ways that torch takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Union

import torch

from . import _C

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._dtensor import DTensor

Size = Union[int, Sequence[int]]


class Options(TypedDict, total=False):
    """What every factory takes beside its size."""

    dtype: torch.dtype | None
    requires_grad: bool
    device_mesh: _C.DeviceMesh | None
    placements: Sequence[_C.Placement] | None
    layout: torch.layout


def _made(make, size, *values, layout=torch.strided, **options):
    if layout != torch.strided:
        raise NotImplementedError(f"meshtorch: a distributed tensor of layout {layout}\n  do: use torch.strided")
    if len(size) == 1 and not isinstance(size[0], int):
        size = size[0]
    options["dtype"] = options.get("dtype") or torch.get_default_dtype()
    return make(list(size), *values, **options)


def empty(*size: Size, **options: Unpack[Options]) -> DTensor:
    """Returns a distributed tensor whose elements are not initialised.

    Options of all factories: dtype, requires_grad, device_mesh, placements, layout. Each rank allocates its shard only.

    >>> meshtorch.empty(5, 2, device_mesh=mesh, placements=[meshtorch.Shard(0)]).to_local().shape
    torch.Size([3, 2])
    """
    return _made(_C.empty, size, **options)


def zeros(*size: Size, **options: Unpack[Options]) -> DTensor:
    """Returns a distributed tensor of zeros.

    >>> meshtorch.zeros(3, device_mesh=mesh, placements=[meshtorch.Shard(0)]).to_local()
    tensor([0., 0.])
    """
    return _made(_C.zeros, size, **options)


def ones(*size: Size, **options: Unpack[Options]) -> DTensor:
    """Returns a distributed tensor of ones.

    >>> meshtorch.ones(3, device_mesh=mesh, placements=[meshtorch.Shard(0)]).to_local()
    tensor([1., 1.])
    """
    return _made(_C.ones, size, **options)


def full(size: Size, fill_value: complex, **options: Unpack[Options]) -> DTensor:
    """Returns a distributed tensor in which every element is `fill_value`.

    >>> meshtorch.full((3,), 7.0, device_mesh=mesh, placements=[meshtorch.Shard(0)]).to_local()
    tensor([7., 7.])
    """
    return _made(_C.full, (size,), fill_value, **options)


def rand(*size: Size, **options: Unpack[Options]) -> DTensor:
    """Returns numbers uniform in [0, 1): the same global tensor for any mesh and placements.

    >>> meshtorch.manual_seed(0)
    >>> split = meshtorch.rand(4, device_mesh=mesh, placements=[meshtorch.Shard(0)])
    >>> meshtorch.manual_seed(0)
    >>> whole = meshtorch.rand(4, device_mesh=mesh)
    >>> torch.equal(split.full_tensor(), whole.to_local())
    True
    """
    return _made(_C.rand, size, **options)


def randn(*size: Size, **options: Unpack[Options]) -> DTensor:
    """Returns normal numbers of mean 0 and variance 1: the same global tensor for any mesh and placements.

    >>> meshtorch.randn(4, 2, device_mesh=mesh, placements=[meshtorch.Shard(0)]).to_local().shape
    torch.Size([2, 2])
    """
    return _made(_C.randn, size, **options)


def _cut(values, requires_grad=False, device_mesh=None, placements=None, layout=torch.strided):
    if layout != torch.strided:
        raise NotImplementedError(f"meshtorch: a distributed tensor of layout {layout}\n  do: use torch.strided")
    mesh = _C.mesh_or_current(device_mesh)
    return _C.distribute_tensor(values, mesh, placements, src_data_rank=None).requires_grad_(requires_grad)


def _number(value):
    return value.item() if isinstance(value, torch.Tensor) else value


def linspace(
    start: float | torch.Tensor, end: float | torch.Tensor, steps: int, *, dtype: torch.dtype | None = None, **options: Any
) -> DTensor:
    """Returns `steps` values from start to end. Each rank computes all of them and keeps its own.

    >>> meshtorch.linspace(0, 3, 4, device_mesh=mesh, placements=[meshtorch.Shard(0)]).to_local()
    tensor([0., 1.])
    """
    return _cut(torch.linspace(_number(start), _number(end), steps, dtype=dtype), **options)


def logspace(
    start: float | torch.Tensor,
    end: float | torch.Tensor,
    steps: int,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> DTensor:
    """Returns `steps` values from base ** start to base ** end.

    >>> meshtorch.logspace(0, 3, 4, base=2.0, device_mesh=mesh, placements=[meshtorch.Shard(0)]).to_local()
    tensor([1., 2.])
    """
    return _cut(torch.logspace(_number(start), _number(end), steps, base=base, dtype=dtype), **options)
