"""Meshes, under the names of torch.distributed.device_mesh."""

import torch
import torch.distributed as dist

from . import _C, _world
from ._C import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh"]


def _rebuild(device_type, ranks, names):
    """What pickle calls: the mesh of this content in the world of the reader."""
    return DeviceMesh(device_type, ranks, mesh_dim_names=names)


def _from_group(group, device_type, mesh=None, *, mesh_dim_names=None):
    """The mesh along a ProcessGroup of torch.distributed, which it uses, or along several, one an axis.

    Of several, those are used whose ranks have no group in meshtorch yet.
    """
    if isinstance(group, dist.ProcessGroup):
        ranks = dist.get_process_group_ranks(group)
        if mesh is not None and torch.as_tensor(mesh).tolist() != ranks:
            raise ValueError(
                f"meshtorch: Invalid mesh {torch.as_tensor(mesh).tolist()} for ProcessGroup with ranks {ranks}"
                "\n  do: leave mesh out, or list these ranks"
            )
        _world.ensure()
        return _C.mesh_of_group(group, ranks, device_type, mesh_dim_names)
    groups = list(group)
    if not groups or mesh is None or mesh_dim_names is None:
        raise ValueError(
            f"meshtorch: from_group of {len(groups)} groups needs at least one of them, mesh and mesh_dim_names"
        )
    if torch.as_tensor(mesh).ndim != len(groups):
        raise ValueError(
            "meshtorch: Expects mesh with ndim equal to number of ProcessGroups but got mesh "
            f"{torch.as_tensor(mesh).tolist()} and {len(groups)} ProcessGroups\n  do: give one axis for each group"
        )
    for one in groups:
        _world.offer_group(one)
    return DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names)


DeviceMesh.from_group = staticmethod(_from_group)
