"""Placements, under the names of torch.distributed.tensor.placement_types."""

from ._C import Partial, Placement, Replicate, Shard, _StridedShard

__all__ = ["Partial", "Placement", "Replicate", "Shard"]
