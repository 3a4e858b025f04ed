"""fully_shard and replicate on torch.nn modules, under the names of torch.distributed.fsdp.

Parameters stay the same objects: DTensors between steps, whole while their module runs.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Callable, Optional, Union

import torch

from . import _C
from ._C import Shard
from ._group_hooks import add_hooks, enter, free_parameters, has_forward, leave, refuse_foreign

__all__ = [
    "CPUOffloadPolicy",
    "DataParallelMeshDims",
    "FSDPModule",
    "GradientReductionHandle",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "UnshardHandle",
    "fully_shard",
    "no_sync",
    "register_fsdp_forward_method",
    "replicate",
    "share_comm_ctx",
]


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """In which types a module computes; None: as they are."""

    param_dtype: Optional[torch.dtype] = None
    reduce_dtype: Optional[torch.dtype] = None
    output_dtype: Optional[torch.dtype] = None
    cast_forward_inputs: bool = True
    # The type of one parameter while it is whole: its own, param_dtype, or None for that.
    param_dtype_override_fn: Optional[Callable[[torch.nn.Parameter], Optional[torch.dtype]]] = field(default=None, kw_only=True)

    def _to_c(self):
        return _C._Precision(self.param_dtype, self.reduce_dtype, self.output_dtype, self.cast_forward_inputs)

    def _type_of(self, name, parameter):
        """The type of this parameter while it is whole, if it is said by itself."""
        dtype = self.param_dtype_override_fn(parameter) if self.param_dtype_override_fn else None
        if dtype is not None and dtype not in (self.param_dtype, parameter.dtype):
            raise ValueError(
                f"meshtorch: param_dtype_override_fn gave {dtype} for {name}\n  its type: {parameter.dtype}, param_dtype: {self.param_dtype}\n"
                "  do: give one of these, or None for param_dtype"
            )
        return dtype


@dataclass
class OffloadPolicy:
    """Shards stay on the device of the mesh."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Shards stay in the memory of the CPU, where those of a mesh of CPUs are anyway."""

    pin_memory: bool = True


def _as_names(names):
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


@dataclass
class DataParallelMeshDims:
    """The axes over which batches are split, of a mesh on which parameters lie with all its axes."""

    shard: Optional[Union[str, tuple[str, ...]]] = None
    replicate: Optional[Union[str, tuple[str, ...]]] = None

    def __post_init__(self):
        if self.shard is None and self.replicate is None:
            raise ValueError("meshtorch: DataParallelMeshDims without axes\n  do: name one to shard or to replicate over")

    @property
    def shard_names(self):
        return _as_names(self.shard)

    @property
    def replicate_names(self):
        return _as_names(self.replicate)


def _refuse_unfit_axes(mesh, dims):
    known = mesh.mesh_dim_names if mesh is not None else None
    if not known:
        raise ValueError("meshtorch: dp_mesh_dims of a mesh without names\n  do: give mesh=, with mesh_dim_names")
    for name in (*dims.replicate_names, *dims.shard_names):
        if name not in known:
            raise ValueError(f"meshtorch: the mesh has no axis {name!r}\n  its axes: {known}\n  in: dp_mesh_dims")
    if len(dims.replicate_names) > 1 or len(dims.shard_names) > 1:
        raise NotImplementedError(
            f"meshtorch: several axes to shard or to replicate over: {dims}\n  do: make the mesh with one axis in their place"
        )


def _take_off_data_axes(parameters, mesh, axes):
    """Parameters that lie on all axes of the mesh, whole on those of batches, lie on its other axes: the group adds these again."""
    others = tuple(name for name in mesh.mesh_dim_names if name not in axes)
    for name, p in parameters:
        if not _C.is_dtensor(p) or p.device_mesh != mesh:
            raise ValueError(
                f"meshtorch: with dp_mesh_dims parameters are distributed over the whole mesh: {name} is not\n  the mesh: {mesh}\n"
                "  do: distribute it, as distribute_module does"
            )
        if any(not p.placements[mesh.mesh_dim_names.index(axis)].is_replicate() for axis in axes):
            raise ValueError(
                f"meshtorch: a parameter is split over an axis of batches: {name}\n  placements: {p.placements}\n  these axes: {axes}\n"
                "  do: redistribute it to Replicate() there"
            )
    for _, p in parameters:
        value = p.detach().to_local()
        if others:
            placements = [p.placements[mesh.mesh_dim_names.index(axis)] for axis in others]
            value = _C.from_local(value, mesh[others], placements, shape=tuple(p.shape), stride=p.stride())
        _C.replace_data(p, value)


class UnshardHandle:
    """A gathering that unshard(async_op=True) has begun."""

    def __init__(self, group):
        self._group = group

    def wait(self):
        """Waits until the parameters are whole; forward does so by itself."""
        self._group.unshard()


class GradientReductionHandle:
    """Reductions that finalize_backward(async_op=True) leaves under way."""

    def __init__(self, groups):
        self._groups = groups

    def wait(self):
        """Waits for them; gradients are there then."""
        for group in self._groups:
            group.finalize_backward()
        self._groups = []


def _ranks_after_forward(value):
    """How the library counts: None, 0 for all ranks of the axis, 1 for parameters that stay whole, or a number of ranks."""
    if value is None:
        return None
    if isinstance(value, bool):
        return 0 if value else 1
    if not isinstance(value, int):
        raise ValueError(
            f"meshtorch: reshard_after_forward is {value!r}\n  do: give True, False, None or a number of ranks"
        )
    return value if value > 0 else -1


def _groups_of_modules(modules):
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(
                f"meshtorch: a module to prefetch is not one of fully_shard: {type(module).__name__}\n"
                "  do: give modules that fully_shard was called on"
            )
    return [module._meshtorch_group for module in modules]


class FSDPModule:
    """What fully_shard adds to the class of a module."""

    def __new__(cls, *args, **kwargs):
        """An object of the class that the module had: parts of it, as model[:2], that are made by calling its class are no groups."""
        plain = next(c for c in cls.__mro__ if not issubclass(c, FSDPModule) and c is not object)
        return plain(*args, **kwargs)

    def unshard(self, async_op=False):
        """Gathers the parameters of this module's group now, or begins to."""
        if not async_op:
            return self._meshtorch_group.unshard()
        self._meshtorch_group.start_gather()
        return UnshardHandle(self._meshtorch_group)

    def reshard(self):
        self._meshtorch_group.reshard()

    def _groups(self, recurse):
        groups = _C._groups_of(list(self.parameters())) if recurse else []
        return groups if self._meshtorch_group in groups else [*groups, self._meshtorch_group]

    def reset_iter_state(self):
        """After an exception in forward or backward: parameters are shards again, gradients that were not reduced are gone."""
        for group in self._groups(recurse=True):
            group.reset_pass()

    def set_requires_gradient_sync(self, requires_gradient_sync, *, recurse=True):
        for group in self._groups(recurse):
            group.requires_gradient_sync = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce, *, recurse=True):
        """Whether gradients are reduced over the axis of copies, too; if not, the sums over shards wait for a pass that does."""
        for group in self._groups(recurse):
            group.set_requires_all_reduce(requires_all_reduce)

    def set_reshard_after_forward(self, reshard_after_forward, recurse=True):
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(
                f"meshtorch: reshard_after_forward is {reshard_after_forward!r}\n  do: give True or False"
            )
        for group in self._groups(recurse):
            group.set_reshard_after_forward(_ranks_after_forward(reshard_after_forward))

    def set_reshard_after_backward(self, reshard_after_backward, *, recurse=True):
        for group in self._groups(recurse):
            group.set_reshard_after_backward(reshard_after_backward)

    def set_modules_to_forward_prefetch(self, modules):
        """Which groups are gathered while this module runs forward; without it, the one that ran next before."""
        self._meshtorch_group.set_forward_prefetch(_groups_of_modules(modules))

    def set_modules_to_backward_prefetch(self, modules):
        self._meshtorch_group.set_backward_prefetch(_groups_of_modules(modules))

    def set_all_reduce_hook(self, hook, *, stream=None):
        """`hook` is called with this rank's shard of each gradient when it is reduced."""
        if stream is not None:
            raise NotImplementedError("meshtorch: set_all_reduce_hook got a stream\n  do: leave it out: there are none here")
        self._meshtorch_group.set_all_reduce_hook(hook)

    def set_gradient_divide_factor(self, factor):
        if factor == 0:
            raise ValueError("meshtorch: set_gradient_divide_factor got 0\n  do: give another number")
        self._meshtorch_group.set_gradient_divide_factor(factor)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_force_sum_reduction_for_comms(self, enable):
        self._meshtorch_group.set_force_sum_reduction(enable)

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params, *, recurse=True):
        for group in self._groups(recurse):
            group.set_counts_unused(reduce_scatter_unused_params)

    def set_unshard_in_backward(self, unshard_in_backward):
        self._meshtorch_group.set_unshard_in_backward(unshard_in_backward)

    def set_separate_reduce_scatter_group(self, enable=True, *, recurse=True):
        """Nothing depends on it here: reductions do not stand behind gathers where ranks share memory, and share gloo's group elsewhere."""

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers, *, recurse=True):
        """Nothing depends on it here: the gradients of one group are under way at a time, in memory that is kept."""
        is_number = isinstance(max_input_buffers, int) and not isinstance(max_input_buffers, bool)
        if not is_number or max_input_buffers < 1:
            raise (ValueError if is_number else TypeError)(
                f"meshtorch: set_reduce_scatter_max_input_buffers got {max_input_buffers!r}\n  do: give a whole number from 1"
            )

    def set_is_last_backward(self, is_last_backward):
        """Nothing depends on it here: each backward pass ends by itself."""

    def set_manual_backward_finalization(self, enabled):
        """Whether backward passes are left open, until finalize_backward() reduces what is left and gives gradients to the parameters."""
        for group in self._groups(recurse=True):
            group.set_ends_backward_by_hand(enabled)

    def finalize_backward(self, *, async_op=False):
        """Ends the backward passes since the last call, of which those before the last reduced nothing (set_requires_gradient_sync)."""
        handle = GradientReductionHandle(self._groups(recurse=True))
        if async_op:
            return handle
        handle.wait()

    def set_keep_unsharded_storage(self, keep, *, recurse=True):
        """Nothing depends on it here: there are no graphs of a device that would hold addresses of parameters."""

    def set_post_optim_event(self, event):
        """Nothing depends on it here: what the optimiser does is done when it returns."""

    def set_custom_all_gather(self, comm):
        _refuse_own_communication("set_custom_all_gather")

    def set_custom_reduce_scatter(self, comm):
        _refuse_own_communication("set_custom_reduce_scatter")

    def set_allocate_memory_from_process_group_for_comm(self, enable):
        if enable:
            _refuse_own_communication("set_allocate_memory_from_process_group_for_comm")

    def set_symm_mem_for_comm(self, backend="NCCL"):
        _refuse_own_communication("set_symm_mem_for_comm")

    def _apply(self, fn, recurse=True):
        """Where torch makes other parameters, as to_empty() does, the old objects, which the group knows, take their data."""
        before = [(m, name, p) for m in self.modules() for name, p in m._parameters.items() if p is not None]
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(False)  # the group holds the parameters, and takes their data itself
        try:
            result = super()._apply(fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swaps)
        for m, name, old in before:
            new = m._parameters[name]
            if new is not old and _C._group_of(old) is not None:
                _C.replace_data(old, new.detach())
                m._parameters[name] = old
        return result


def _refuse_own_communication(name):
    raise NotImplementedError(
        f"meshtorch: {name}: groups are gathered and reduced by meshtorch's own collectives\n"
        "  do: leave it out, or change gradients in set_all_reduce_hook"
    )


def _as_fsdp(module):
    cls = type(module)
    if not issubclass(cls, FSDPModule):
        module.__class__ = type(f"FSDP{cls.__name__}", (FSDPModule, cls), {"__deepcopy__": _refuse_deepcopy})


def _refuse_deepcopy(self, memo):
    raise AssertionError(
        f"meshtorch: FSDP does not support deepcopy: a module of fully_shard, {type(self).__name__}\n"
        "  do: copy it before, or load its state into a module of the same shape"
    )


def _refuse_missing_dims(parameters, placements):
    for (name, p), placement in zip(parameters, placements):
        if isinstance(placement, Shard) and not -p.ndim <= placement.dim < p.ndim:
            raise AssertionError(
                f"meshtorch: Shard dim {placement.dim} is invalid for {p.ndim}D tensor\n"
                f"  from shard_placement_fn: {placement}, parameter: {name}, shape: {list(p.shape)}\n  do: give a dim that the parameter has"
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
    dp_mesh_dims=None,
):
    """Makes one group of the parameters of the module, or of several, that are in none yet, split over the mesh; see FSDP2.

    A mesh of two axes replicates over the first and shards over the second. `reshard_after_forward` is True, False, a
    number of ranks among which parts are kept, or None: True but for the module that runs first. With `dp_mesh_dims` the mesh
    is that of the parameters, of which they name the axes of batches.
    """
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    for part in modules:
        if isinstance(part, (torch.nn.ModuleList, torch.nn.ModuleDict)) and not has_forward(part):
            raise ValueError(
                f"meshtorch: fully_shard does not support containers that do not implement forward: {part}\n"
                "  do: call it on the modules inside"
            )
        if hasattr(part, "_meshtorch_group"):
            raise AssertionError(
                "meshtorch: Each distinct composable distributed API can only be applied to a module once.\n"
                f"  fully_shard was called on this module before: {type(part).__name__}\n"
                "  do: call it once, on layers first and on the whole at last"
            )
    if dp_mesh_dims is not None:
        _refuse_unfit_axes(mesh, dp_mesh_dims)
    mesh = mesh or _C._world_mesh()
    if isinstance(offload_policy, CPUOffloadPolicy):
        _C._check_offload(mesh)
    parameters = free_parameters(modules, ignored_params)
    refuse_foreign(parameters, "fully_shard")
    name = ", ".join(type(part).__name__ for part in modules)
    placements = [shard_placement_fn(p) if shard_placement_fn else None for _, p in parameters]
    _refuse_missing_dims(parameters, placements)
    ranks_after_forward = _ranks_after_forward(reshard_after_forward)
    if dp_mesh_dims is not None:
        axes = (*dp_mesh_dims.replicate_names, *dp_mesh_dims.shard_names)
        _take_off_data_axes(parameters, mesh, axes)
        mesh = mesh[axes]
    if dp_mesh_dims is not None and not dp_mesh_dims.shard_names:
        group = _C._replicated_group(name, parameters, [], mesh, 25 * 2**20, False, mp_policy._to_c())
    else:
        types = [mp_policy._type_of(*named) for named in parameters]
        group = _C._sharded_group(name, parameters, placements, types, mesh, ranks_after_forward, mp_policy._to_c())
    add_hooks(modules, group, parameters)
    for part in modules:
        _as_fsdp(part)
    return module


def _state_of(module):
    """The group of a module that fully_shard was called on; None of others."""
    return module.__dict__.get("_meshtorch_group")


fully_shard.state = _state_of


def share_comm_ctx(modules):
    """Nothing depends on it here: groups share what they communicate by, whatever models they are of."""
    _groups_of_modules(modules)


def replicate(
    module, *, mesh=None, mp_policy=MixedPrecisionPolicy(), bucket_cap_mb=25, find_unused_parameters=False
):
    """Keeps a copy of the module on every rank and reduces gradients in buckets during backward."""
    parameters = free_parameters([module])
    refuse_foreign(parameters, "replicate")
    group = _C._replicated_group(
        type(module).__name__,
        parameters,
        list(module.buffers()),
        mesh or _C._world_mesh(),
        int(bucket_cap_mb * 2**20),
        find_unused_parameters,
        mp_policy._to_c(),
    )
    add_hooks([module], group, parameters)
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
    if not hasattr(module, "_meshtorch_group"):
        return
    if not hasattr(module, method_name):
        raise ValueError(f"meshtorch: {type(module).__name__} has no method {method_name}")
    method = getattr(module, method_name)

    @wraps(method)
    def forward(*args, **kwargs):
        args, kwargs = enter(module, args, kwargs)
        return leave(module, method(*args, **kwargs))

    setattr(module, method_name, forward)
