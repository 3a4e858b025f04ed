"""Distributed tensors in torch.distributed.checkpoint: the methods by which it asks a tensor for its parts."""

import itertools

import torch

from . import _C


def _parts(tensor):
    """(offsets, sizes, where it lies in this rank's shard) of each box of the global tensor that this rank holds; if it holds
    nothing, of one without elements, by which a tensor that has none is known all the same."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(
            "meshtorch: Any checkpointing related operations are not supported for a tensor with pending sums\n"
            f"  placements: {tensor.placements}\n  do: redistribute it to Replicate() or Shard() first"
        )
    if tensor.device_mesh.size() > 1 and not torch.distributed.is_initialized():
        raise RuntimeError(
            "meshtorch: torch.distributed.checkpoint of a tensor on several ranks, and torch.distributed has no world: each rank would "
            "write as if it were alone\n  in: a checkpoint of a tensor on " + str(tensor.device_mesh) + "\n  do: call "
            'torch.distributed.init_process_group first ("shm" for processes of one host); ranks that are threads cannot do this'
        )
    if tensor.device_mesh.get_coordinate() is None:
        return
    lines = []
    for size, held in zip(tensor.shape, _C.held_ranges(tensor)):
        runs = held or [(size, 0)]
        starts = itertools.accumulate((size for _, size in runs), initial=0)
        lines.append([(begin, size, start) for (begin, size), start in zip(runs, starts)])
    for box in itertools.product(*lines):
        offsets, sizes, starts = zip(*box) if box else ((), (), ())
        yield torch.Size(offsets), torch.Size(sizes), starts


def create_chunk_list(tensor):
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return [ChunkStorageMetadata(offsets=offsets, sizes=sizes) for offsets, sizes, _ in _parts(tensor)]


def create_write_items(tensor, fqn, _):
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    properties = TensorProperties.create_from_tensor(tensor.to_local())
    return [
        WriteItem(
            index=MetadataIndex(fqn, chunk.offsets),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=tensor.size()),
        )
        for chunk in create_chunk_list(tensor)
    ]


def get_tensor_shard(tensor, index):
    """The part that begins at index.offset, in this rank's memory."""
    parts = list(_parts(tensor))
    offset = getattr(index, "offset", None)
    for offsets, sizes, starts in parts:
        if offset is not None and tuple(offset) != tuple(offsets):
            continue
        shard = tensor.to_local()
        for dim, (start, size) in enumerate(zip(starts, sizes)):
            shard = shard.narrow(dim, start, size)
        return shard
    raise ValueError(f"meshtorch: this rank holds no part of the tensor at {index}\n  it holds: {parts}")
