"""Placements, under the names of torch.distributed.tensor.placement_types."""

from ._C import Partial, Placement, Replicate, Shard, _StridedShard

__all__ = ["Partial", "Placement", "Replicate", "Shard"]

# Rows that another rank holds are masked in the call of each rank, and what it leaves is a pending sum.
_MaskPartial = Partial
