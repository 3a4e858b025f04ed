"""Where a distributed tensor lies, under the names of torch.distributed.tensor._dtensor_spec."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ._C import DTensorSpec

__all__ = ["DTensorSpec", "TensorMeta"]


class TensorMeta(NamedTuple):
    """The global shape, strides and type of a tensor.

    >>> from meshtorch.placement_types import TensorMeta
    >>> TensorMeta(torch.Size([4, 2]), (2, 1), torch.float32).shape
    torch.Size([4, 2])
    """

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _shards_of_dims(spec):
    """Of each dim of the tensor: the axes that split it."""
    axes = [[] for _ in range(spec.ndim)]
    for axis, placement in enumerate(spec.placements):
        if not placement.is_replicate() and not placement.is_partial():
            axes[placement.dim].append(axis)
    return axes


def _num_shards_map(spec):
    """Of each dim: in how many parts it is split."""
    counts = []
    for axes in _shards_of_dims(spec):
        counts.append(1)
        for axis in axes:
            counts[-1] *= spec.mesh.size(axis)
    return counts


def _num_shards(spec):
    total = 1
    for count in _num_shards_map(spec):
        total *= count
    return total


def _is_replicated(spec: DTensorSpec) -> bool:
    """Whether every rank has the whole tensor."""
    return all(p.is_replicate() for p in spec.placements)


def _is_sharded(spec: DTensorSpec) -> bool:
    """Whether a dim of the tensor is split."""
    return any(not p.is_replicate() and not p.is_partial() for p in spec.placements)


DTensorSpec.tensor_meta = property(lambda spec: TensorMeta(spec.shape, spec.stride, spec.dtype))
DTensorSpec.num_shards_map = property(_num_shards_map)
DTensorSpec.num_shards = property(_num_shards)
DTensorSpec.dim_map = property(lambda spec: [axes[-1] if axes else -1 for axes in _shards_of_dims(spec)])
DTensorSpec.sums = property(lambda spec: [axis for axis, p in enumerate(spec.placements) if p.is_partial()])
DTensorSpec.is_replicated = _is_replicated
DTensorSpec.is_sharded = _is_sharded
