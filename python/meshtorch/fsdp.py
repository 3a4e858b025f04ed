"""fully_shard and replicate on torch.nn modules, under the names of torch.distributed.fsdp.

Parameters stay the same objects: DTensors between steps, whole while their module runs.
"""

from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Optional

import torch
from torch.utils import _pytree as pytree

from . import _C

__all__ = [
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "fully_shard",
    "no_sync",
    "register_fsdp_forward_method",
    "replicate",
]


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """In which types a module computes; None: as they are."""

    param_dtype: Optional[torch.dtype] = None
    reduce_dtype: Optional[torch.dtype] = None
    output_dtype: Optional[torch.dtype] = None
    cast_forward_inputs: bool = True

    def _to_c(self):
        return _C._Precision(self.param_dtype, self.reduce_dtype, self.output_dtype, self.cast_forward_inputs)


@dataclass
class OffloadPolicy:
    """Shards stay on the device of the mesh."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Shards stay in the memory of the CPU, where those of a mesh of CPUs are anyway."""

    pin_memory: bool = True


def _on_tensors(call, values):
    """The values with their tensors replaced by what `call` makes of the list of them."""
    leaves, spec = pytree.tree_flatten(values)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for i, tensor in zip(places, call([leaves[i] for i in places])):
        leaves[i] = tensor
    return pytree.tree_unflatten(leaves, spec)


def _enter(module, group, args, kwargs):
    if group.is_new:
        group.become_root_of(list(module.parameters()))
    return _on_tensors(group.before_forward, (args, kwargs))


def _add_hooks(module, group):
    module._meshtorch_group = group
    module.register_forward_pre_hook(
        lambda part, args, kwargs: _enter(part, group, args, kwargs), prepend=True, with_kwargs=True
    )
    module.register_forward_hook(lambda part, args, outputs: _on_tensors(group.after_forward, outputs))


def _free_parameters(module, ignored=()):
    ignored = {id(p) for p in ignored or ()}
    return [
        (name, p) for name, p in module.named_parameters() if id(p) not in ignored and _C._group_of(p) is None
    ]


class FSDPModule:
    """What fully_shard adds to the class of a module."""

    def unshard(self, async_op=False):
        """Gathers the parameters of this module's group now."""
        self._meshtorch_group.unshard()

    def reshard(self):
        self._meshtorch_group.reshard()

    def _groups(self, recurse):
        groups = _C._groups_of(list(self.parameters())) if recurse else []
        return groups if self._meshtorch_group in groups else [*groups, self._meshtorch_group]

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        for group in self._groups(recurse):
            group.requires_gradient_sync = requires_gradient_sync

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        for group in self._groups(recurse):
            group.set_reshard_after_forward(reshard_after_forward)

    def set_is_last_backward(self, is_last_backward):
        """Nothing depends on it here: each backward pass ends by itself."""


def _as_fsdp(module):
    cls = type(module)
    if not issubclass(cls, FSDPModule):
        module.__class__ = type(f"FSDP{cls.__name__}", (FSDPModule, cls), {"__deepcopy__": _refuse_deepcopy})


def _refuse_deepcopy(self, memo):
    raise AssertionError(
        f"meshtorch: a module of fully_shard does not support deepcopy: {type(self).__name__}\n"
        "  do: copy it before, or load its state into a module of the same shape"
    )


def fully_shard(
    module,
    *,
    mesh=None,
    reshard_after_forward=None,
    shard_placement_fn=None,
    mp_policy=MixedPrecisionPolicy(),
    offload_policy=OffloadPolicy(),
    ignored_params=None,
):
    """Makes one group of the parameters of the module that are in none yet, split over the mesh; see FSDP2.

    A mesh of two axes replicates over the first and shards over the second. `reshard_after_forward` is True, False or
    None: True but for the module that runs first.
    """
    if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        raise ValueError(
            f"meshtorch: fully_shard does not support containers that do not implement forward: {module}\n"
            "  do: call it on the modules inside"
        )
    if reshard_after_forward is not None and not isinstance(reshard_after_forward, bool):
        raise NotImplementedError(
            f"meshtorch: reshard_after_forward={reshard_after_forward}: parameters are gathered over the whole axis\n"
            "  do: give True or False, or a mesh of two axes"
        )
    parameters = _free_parameters(module, ignored_params)
    placements = [shard_placement_fn(p) if shard_placement_fn else None for _, p in parameters]
    group = _C._sharded_group(
        type(module).__name__, parameters, placements, mesh or _C._world_mesh(), reshard_after_forward, mp_policy._to_c()
    )
    _add_hooks(module, group)
    _as_fsdp(module)
    return module


def replicate(
    module, *, mesh=None, mp_policy=MixedPrecisionPolicy(), bucket_cap_mb=25, find_unused_parameters=False
):
    """Keeps a copy of the module on every rank and reduces gradients in buckets during backward."""
    group = _C._replicated_group(
        type(module).__name__,
        _free_parameters(module),
        list(module.buffers()),
        mesh or _C._world_mesh(),
        int(bucket_cap_mb * 2**20),
        find_unused_parameters,
        mp_policy._to_c(),
    )
    _add_hooks(module, group)
    return module


@contextmanager
def no_sync(module):
    """Gradients inside it are added up on each rank; the first backward after it reduces the sum."""
    groups = [g for g in _C._groups_of(list(module.parameters())) if g.requires_gradient_sync]
    for group in groups:
        group.requires_gradient_sync = False
    try:
        yield
    finally:
        for group in groups:
            group.requires_gradient_sync = True


def register_fsdp_forward_method(module, method_name):
    """Makes a method count as forward: parameters are whole while it runs. Does nothing to other modules."""
    group = getattr(module, "_meshtorch_group", None)
    if group is None:
        return
    if not hasattr(module, method_name):
        raise ValueError(f"meshtorch: {type(module).__name__} has no method {method_name}")
    method = getattr(module, method_name)

    @wraps(method)
    def forward(*args, **kwargs):
        args, kwargs = _enter(module, group, args, kwargs)
        return _on_tensors(group.after_forward, method(*args, **kwargs))

    setattr(module, method_name, forward)
