"""Placements, under the names of torch.distributed.tensor.placement_types."""

from ._C import Partial, Placement, Replicate, Shard, _StridedShard
from ._dtensor_spec import DTensorSpec, TensorMeta

__all__ = ["DTensorSpec", "Partial", "Placement", "Replicate", "Shard", "TensorMeta"]

# Rows that another rank holds are masked in the call of each rank, and what it leaves is a pending sum.
_MaskPartial = Partial


def _size_and_offset(curr_local_size, num_chunks, rank):
    """What torch.chunk gives to a rank of a dim: (size, where it begins)."""
    largest = -(-curr_local_size // num_chunks)
    offset = min(largest * rank, curr_local_size)
    return min(largest, curr_local_size - offset), offset


Shard.local_shard_size_and_offset = staticmethod(_size_and_offset)
Partial.ALL_REDUCE_OPS, Partial.LINEAR_REDUCE_OPS = ("sum", "avg", "min", "max", "product"), ("sum", "avg")
