"""Shards from one layout to another, under the name of torch.distributed.tensor._redistribute."""

from . import _C


def redistribute_local_tensor(
    local_tensor, current_spec, target_spec, *, async_op=False, use_graph_based_transform=None, is_explicit=False
):
    """This rank's shard under `target_spec` of a tensor whose shard under `current_spec` is `local_tensor`. How it is planned does not
    depend on the last two options, which PyTorch has."""
    tensor = _C.from_local(
        local_tensor,
        current_spec.mesh,
        list(current_spec.placements),
        shape=list(current_spec.shape),
        stride=list(current_spec.stride),
    )
    return _C.to_local(_C.redistribute(tensor, target_spec.mesh, list(target_spec.placements), async_op=async_op))
