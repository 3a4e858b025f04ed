"""Sizes of shards, under the names of torch.distributed.tensor._utils."""

import torch

from . import _C


def compute_local_shape_and_global_offset(global_shape, mesh, placements, skip_offset=False):
    """(sizes, where they begin in the global tensor) of what this rank holds of a tensor of this shape.

    On a rank outside the mesh ((0,), ()). Of a dim that is held in several runs, the offset is that of the first; of one of which nothing
    is held, the size of the global dim.
    """
    if mesh.get_coordinate() is None:
        return (0,), ()
    sizes, offsets = [], []
    for size, runs in zip(global_shape, _C.held_ranges_of(list(global_shape), mesh, list(placements))):
        runs = [(begin, length) for begin, length in runs if length] if runs else []
        sizes.append(sum(length for _, length in runs))
        offsets.append(runs[0][0] if runs else size)
    return tuple(sizes), () if skip_offset else tuple(offsets)


def normalize_to_torch_size(size):
    """The sizes that a factory was given, as a torch.Size: one number, several, or a list of them."""
    if isinstance(size, torch.Size):
        return size
    if isinstance(size, int):
        return torch.Size([size])
    return torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
