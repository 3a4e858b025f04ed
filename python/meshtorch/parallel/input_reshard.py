"""Less memory between forward and backward of a tensor-parallel module: of tensors that its ranks hold alike, each keeps a part."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .. import _C

M = TypeVar("M", bound=nn.Module)

__all__ = ["input_reshard"]


def _memory_of(values):
    """Where the plain tensors among the values lie."""
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor) and not _C.is_dtensor(leaf)]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _whole(tensor, mesh, inputs):
    """The tensor as one that each rank of the mesh holds whole; None if it is not known to be that: plain ones are, if they are inputs."""
    if not _C.is_dtensor(tensor):
        return _C.from_local(tensor, mesh, [_C.Replicate()]) if _memory_of(tensor) <= inputs else None
    is_whole = tensor.device_mesh == mesh and all(placement.is_replicate() for placement in tensor.placements)
    return tensor if is_whole else None


def _scope(mesh, dim, inputs):
    @torch.no_grad()
    def keep(tensor):
        can_be_cut = tensor.dim() > dim and tensor.numel() >= mesh.size()
        whole = _whole(tensor.detach(), mesh, inputs) if can_be_cut else None
        if whole is None:
            return tensor, None
        return whole.redistribute(mesh, [_C.Shard(dim)]).clone(), _C.is_dtensor(tensor)

    @torch.no_grad()
    def give_back(saved):
        tensor, was_distributed = saved
        if was_distributed is None:
            return tensor
        return tensor.redistribute(placements=[_C.Replicate()]) if was_distributed else tensor.full_tensor()

    return torch.autograd.graph.saved_tensors_hooks(keep, give_back)


def input_reshard(module: M, tp_device_mesh: _C.DeviceMesh, input_reshard_dim: int | None = None) -> M:
    """Makes the module keep what backward needs of its inputs, which are equal on all ranks of the mesh, and of replicated tensors split
    along a dim; backward gathers it. Without a dim nothing changes. Returns the module.

    >>> from meshtorch.parallel import ColwiseParallel, parallelize_module
    >>> from meshtorch.parallel.input_reshard import input_reshard
    >>> linear = parallelize_module(torch.nn.Linear(4, 4), mesh, ColwiseParallel())
    >>> _ = input_reshard(linear, mesh, 0)
    >>> linear(torch.ones(2, 4)).sum().backward()
    """
    if input_reshard_dim is None:
        return module
    scopes = []

    def enter(part, args, kwargs):
        scopes.append(_scope(tp_device_mesh, input_reshard_dim, _memory_of((args, kwargs))))
        scopes[-1].__enter__()

    def leave(part, inputs, outputs):
        scopes.pop().__exit__()

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave, always_call=True)
    return module
