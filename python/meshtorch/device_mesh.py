"""Meshes, under the names of torch.distributed.device_mesh."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._mesh_layout import _FlatLayout, _MeshLayout

from . import _C, _world
from ._C import DeviceMesh

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


def _as_override(value):
    """(backend, options) of a value of backend_override."""
    if isinstance(value, str):
        return value, None
    return value if isinstance(value, tuple) else (None, value)


def _overrides(backend_override, ndim, names):
    """(backend, options) for each axis."""
    left = dict(backend_override or {})
    found = []
    for number in range(ndim):
        name = names[number] if names and number < len(names) else None
        if number in left and name in left:
            raise RuntimeError(
                f"meshtorch: Found redundant dim index {number} and name {name} in backend_override\n  do: leave one out"
            )
        key = name if name in left else number
        found.append(_as_override(left.pop(key)) if key in left else (None, None))
    if left:
        raise RuntimeError(
            f"meshtorch: Found invalid keys in backend_override: got {list(left)}\n  do: name axes, {names or ()}, or number "
            f"them from 0 to {ndim - 1}"
        )
    return found


def _axes_of_rank(ranks, overrides, names):
    """How the groups of this rank along the axes of a tensor of ranks are asked for: {(name, ranks): (backend, options, description)}."""
    place = (ranks == dist.get_rank()).nonzero()
    if len(place) == 0:
        return {}
    asked = {}
    for axis, (backend, options) in enumerate(overrides):
        line = ranks[tuple(slice(None) if a == axis else int(at) for a, at in enumerate(place[0]))]
        name = names[axis] if names else f"dim_{axis}"
        asked[name, tuple(line.tolist())] = backend, options, f"mesh_{name}"
    return asked


def _made_with(make, ranks, overrides, names):
    """make(), with groups as asked for where they are torch's."""
    is_overridden = any(override != (None, None) for override in overrides)
    if not (dist.is_available() and dist.is_initialized()):
        if is_overridden:
            raise ValueError(
                "meshtorch: backend_override chooses among the backends of torch.distributed, and this world has none"
                "\n  do: call torch.distributed.init_process_group first"
            )
        return make()
    if not is_overridden:
        mesh = make()
        if _C.is_world_of_torch():  # and not one of ranks that are threads
            _world.take_requests(_axes_of_rank(ranks, overrides, names))
        return mesh
    _world.ensure()
    _world.take_requests(_axes_of_rank(ranks, overrides, names))
    return make()


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Mapping[int | str, Any] | None = None,
) -> DeviceMesh:
    """Returns a mesh of all ranks in their order. backend_override: {axis: backend, (backend, options) or options}.

    >>> mesh = meshtorch.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    >>> mesh["dp"].size(), mesh.get_coordinate()
    (2, (0, 0))
    """
    shape = tuple(mesh_shape)
    overrides = _overrides(backend_override, len(shape), mesh_dim_names)

    def make():
        return _C.init_device_mesh(device_type, shape, mesh_dim_names=mesh_dim_names)

    if mesh_dim_names is not None and len(mesh_dim_names) != len(shape) or min(shape, default=1) < 1:
        return make()  # says what is wrong
    return _made_with(make, torch.arange(math.prod(shape)).view(shape), overrides, mesh_dim_names)


def _flatten(self, mesh_dim_name=None, backend_override=None):
    """One axis of all, in their order; backend_override: its backend, (backend, options) or options."""
    overrides = [(None, None) if backend_override is None else _as_override(backend_override)]
    name = mesh_dim_name or "_".join(self.mesh_dim_names or ())
    flat = _made_with(lambda: _plain_flatten(self, mesh_dim_name), self.mesh.flatten(), overrides, (name,))
    if self.ndim > 1:
        _given_names.setdefault(hash(self._get_root_mesh()), {})[name] = None
    return flat


def _steps(offsets):
    """(sizes, strides) of an axis along which positions lie at these offsets from its first, the outer first."""
    if len(offsets) == 1:
        return (), ()
    inner = next((i for i, offset in enumerate(offsets) if offset != i * offsets[1]), len(offsets))
    sizes, strides = _steps(offsets[::inner])
    return (*sizes, inner), (*strides, offsets[1])


def _flatten_rank_map(self):
    """The ranks of the mesh that this one was cut from, in row-major order."""
    return tuple(self._get_root_mesh().mesh.flatten().tolist())


def _layout(self):
    """Where the axes lie in that list, in torch's terms."""
    place = {rank: at for at, rank in enumerate(self._flatten_rank_map)}
    axes = []
    for axis in range(self.ndim):
        line = self.mesh[tuple(slice(None) if a == axis else 0 for a in range(self.ndim))].tolist()
        axes.append(_FlatLayout(*_steps([place[rank] - place[line[0]] for rank in line])))
    return _MeshLayout(axes)


def _dim_group_names(self):
    """The names in torch.distributed of the groups of this rank along the axes; none on a rank outside the mesh."""
    return [] if self.get_coordinate() is None else [group.group_name for group in self.get_all_groups()]


def _flatten_mapping(self):
    """The meshes that flattening gave a name to, of those cut from the one that this mesh was cut from."""
    root, found = self._get_root_mesh(), {}
    for name in _given_names.get(hash(root), ()):
        try:
            found[name] = root[name]
        except KeyError:  # of an equal mesh, in a world before
            continue
    return found


def _unflatten(self, dim, mesh_sizes, mesh_dim_names, backend_override=None):
    """The mesh with one axis as several; backend_override: {axis of the new ones: as in init_device_mesh}."""
    overrides = _overrides(backend_override, len(mesh_sizes), mesh_dim_names)

    def make():
        return _plain_unflatten(self, dim, mesh_sizes, mesh_dim_names)

    if backend_override is None:
        return make()
    axis = self.mesh_dim_names.index(dim) if isinstance(dim, str) else dim
    names = self.mesh_dim_names and (*self.mesh_dim_names[:axis], *mesh_dim_names, *self.mesh_dim_names[axis + 1 :])
    return _made_with(make, self.mesh.unflatten(axis, tuple(mesh_sizes)), _around(self, axis, overrides), names)


def _around(mesh, axis, overrides):
    return [(None, None)] * axis + overrides + [(None, None)] * (mesh.ndim - axis - 1)


def _get_mesh_dim_by_name(self, mesh_dim_name):
    """The number of the axis with this name."""
    if mesh_dim_name not in (self.mesh_dim_names or ()):
        raise KeyError(
            f"meshtorch: the mesh has no axis {mesh_dim_name!r}\n  its axes are {self.mesh_dim_names}\n"
            "  do: use one of these names"
        )
    return self.mesh_dim_names.index(mesh_dim_name)


def _get_root_mesh_dim(self):
    """The number of this mesh's only axis in the mesh that it was cut from; None without names."""
    if not self.mesh_dim_names:
        return None
    if self.ndim != 1:
        raise AssertionError(
            f"meshtorch: a mesh of {self.ndim} axes has no one number in the mesh that it was cut from\n  do: slice one axis"
        )
    return self._get_root_mesh()._get_mesh_dim_by_name(self.mesh_dim_names[0])


def _get_all_submeshes(self, mesh_dim_name):
    """The meshes along one axis, of all ranks: each rank is in one of them."""
    axis = self._get_mesh_dim_by_name(mesh_dim_name)
    lines = self.mesh.movedim(axis, -1).reshape(-1, self.size(axis))
    return [DeviceMesh(self.device_type, line, mesh_dim_names=(mesh_dim_name,)) for line in lines]


def _is_current_rank_part_of_mesh(self):
    return self.get_coordinate() is not None


# The older way to ask the same of a mesh.
_mesh_resources = SimpleNamespace(
    get_current_mesh=_C.mesh_or_current,
    get_root_mesh=lambda device_mesh: device_mesh._get_root_mesh(),
    _get_all_submeshes=lambda device_mesh, mesh_dim_name: device_mesh._get_all_submeshes(mesh_dim_name),
)

DeviceMesh._get_mesh_dim_by_name = _get_mesh_dim_by_name
DeviceMesh._is_current_rank_part_of_mesh = _is_current_rank_part_of_mesh
DeviceMesh._get_root_mesh_dim = _get_root_mesh_dim
DeviceMesh._get_all_submeshes = _get_all_submeshes
_given_names = {}  # by flattening, in their order, by the hash of the mesh that others are cut from
DeviceMesh._flatten_rank_map = property(_flatten_rank_map)
DeviceMesh._layout = property(_layout)
DeviceMesh._dim_group_names = property(_dim_group_names)
DeviceMesh._coordinate_on_dim = property(lambda self: self.get_coordinate())
DeviceMesh._thread_id = property(lambda self: threading.get_ident())  # that of its rank, to which a mesh belongs
DeviceMesh._flatten_mapping = property(_flatten_mapping)
_plain_flatten, DeviceMesh._flatten = DeviceMesh._flatten, _flatten
_plain_unflatten, DeviceMesh._unflatten = DeviceMesh._unflatten, _unflatten
DeviceMesh.from_group = staticmethod(_from_group)
