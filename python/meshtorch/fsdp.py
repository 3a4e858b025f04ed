"""fully_shard and replicate on torch.nn modules, under the names of torch.distributed.fsdp.

Parameters stay the same objects: DTensors between steps, whole while their module runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Optional, TypeVar, Union

import torch
from torch import nn

from . import _C
from ._C import Shard
from ._group_hooks import add_hooks, enter, free_parameters, has_forward, leave, refuse_foreign

One = TypeVar("One", bound=nn.Module)
M = TypeVar("M", bound=Union[nn.Module, Sequence[nn.Module]])  # one, or a list of them

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
    """The types in which a module computes; None: as they are.

    >>> from meshtorch.fsdp import MixedPrecisionPolicy, fully_shard
    >>> half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    >>> model = fully_shard(torch.nn.Linear(4, 4), mesh=mesh, mp_policy=half)
    >>> model(torch.ones(2, 4)).dtype
    torch.bfloat16
    """

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
    """Shards stay on the device of the mesh.

    >>> from meshtorch.fsdp import OffloadPolicy, fully_shard
    >>> _ = fully_shard(torch.nn.Linear(4, 4), mesh=mesh, offload_policy=OffloadPolicy())
    """


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Shards stay in the memory of the CPU, where those of a mesh of CPUs are anyway.

    >>> from meshtorch.fsdp import CPUOffloadPolicy, fully_shard
    >>> _ = fully_shard(torch.nn.Linear(4, 4), mesh=mesh, offload_policy=CPUOffloadPolicy())
    """

    pin_memory: bool = True


def _as_names(names):
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


@dataclass
class DataParallelMeshDims:
    """The axes over which batches are split, of a mesh on which parameters lie with all its axes.

    >>> from meshtorch.fsdp import DataParallelMeshDims, fully_shard
    >>> whole = meshtorch.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    >>> linear = meshtorch.distribute_module(torch.nn.Linear(4, 4), whole)
    >>> _ = fully_shard(linear, mesh=whole, dp_mesh_dims=DataParallelMeshDims(shard="dp"))
    """

    shard: Optional[Union[str, tuple[str, ...]]] = None
    replicate: Optional[Union[str, tuple[str, ...]]] = None

    def __post_init__(self):
        if self.shard is None and self.replicate is None:
            raise ValueError("meshtorch: DataParallelMeshDims without axes\n  do: name one to shard or to replicate over")

    @property
    def shard_names(self) -> tuple[str, ...]:
        return _as_names(self.shard)

    @property
    def replicate_names(self) -> tuple[str, ...]:
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
    """A gathering that unshard(async_op=True) has begun.

    >>> from meshtorch.fsdp import fully_shard
    >>> model = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
    >>> handle = model.unshard(async_op=True)
    >>> handle.wait()
    >>> model.reshard()
    """

    def __init__(self, group: _C._ParameterGroup) -> None:
        self._group = group

    def wait(self) -> None:
        """Waits until the parameters are whole; forward does so by itself."""
        self._group.unshard()


class GradientReductionHandle:
    """Reductions that finalize_backward(async_op=True) leaves under way.

    >>> from meshtorch.fsdp import fully_shard
    >>> model = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
    >>> model.set_manual_backward_finalization(True)
    >>> model(torch.ones(2, 4)).sum().backward()
    >>> model.finalize_backward(async_op=True).wait()
    """

    def __init__(self, groups: list[_C._ParameterGroup]) -> None:
        self._groups = groups

    def wait(self) -> None:
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
    """What fully_shard adds to the class of a module.

    >>> from meshtorch.fsdp import fully_shard
    >>> model = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
    >>> isinstance(model, meshtorch.fsdp.FSDPModule)
    True
    >>> model.set_requires_gradient_sync(False)  # this pass adds up gradients on each rank
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """An object of the class that the module had: parts of it, as model[:2], that are made by calling its class are no groups."""
        plain = next(c for c in cls.__mro__ if not issubclass(c, FSDPModule) and c is not object)
        return plain(*args, **kwargs)

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers the parameters of this module's group now, or begins to."""
        if not async_op:
            self._meshtorch_group.unshard()
            return None
        self._meshtorch_group.start_gather()
        return UnshardHandle(self._meshtorch_group)

    def reshard(self) -> None:
        """Gives the memory of whole parameters back; this rank keeps its shards."""
        self._meshtorch_group.reshard()

    def _groups(self, recurse):
        groups = _C._groups_of(list(self.parameters())) if recurse else []
        return groups if self._meshtorch_group in groups else [*groups, self._meshtorch_group]

    def reset_iter_state(self) -> None:
        """After an exception in forward or backward: parameters are shards again, gradients that were not reduced are gone."""
        for group in self._groups(recurse=True):
            group.reset_pass()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Whether backward reduces gradients; if not, they are added up on each rank until a pass that does."""
        for group in self._groups(recurse):
            group.requires_gradient_sync = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Whether gradients are reduced over the axis of copies, too; if not, the sums over shards wait for a pass that does."""
        for group in self._groups(recurse):
            group.set_requires_all_reduce(requires_all_reduce)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether parameters are shards again between forward and backward."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(
                f"meshtorch: reshard_after_forward is {reshard_after_forward!r}\n  do: give True or False"
            )
        for group in self._groups(recurse):
            group.set_reshard_after_forward(_ranks_after_forward(reshard_after_forward))

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether parameters are shards again after backward."""
        for group in self._groups(recurse):
            group.set_reshard_after_backward(reshard_after_backward)

    def set_modules_to_forward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """Sets which groups are gathered while this module runs forward; by default the group that ran next in the last pass."""
        self._meshtorch_group.set_forward_prefetch(_groups_of_modules(modules))

    def set_modules_to_backward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """The same for backward."""
        self._meshtorch_group.set_backward_prefetch(_groups_of_modules(modules))

    def set_all_reduce_hook(self, hook: Callable[[torch.Tensor], None], *, stream: Any = None) -> None:
        """Sets a hook that is called with this rank's shard of each gradient when it is reduced."""
        if stream is not None:
            raise NotImplementedError("meshtorch: set_all_reduce_hook got a stream\n  do: leave it out: there are none here")
        self._meshtorch_group.set_all_reduce_hook(hook)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divides the sum of gradients by `factor`, in place of the number of ranks."""
        if factor == 0:
            raise ValueError("meshtorch: set_gradient_divide_factor got 0\n  do: give another number")
        self._meshtorch_group.set_gradient_divide_factor(factor)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Whether gradients are divided before and after a sum, in place of a reduction by average."""
        self._meshtorch_group.set_force_sum_reduction(enable)

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """Whether parameters that a pass did not use take part in its reduction, with zeros."""
        for group in self._groups(recurse):
            group.set_counts_unused(reduce_scatter_unused_params)

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Whether this module's group is gathered for backward; off, if backward reads none of its parameters."""
        self._meshtorch_group.set_unshard_in_backward(unshard_in_backward)

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """Has no effect: reductions do not stand behind gathers where ranks share memory, and share gloo's group elsewhere."""

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """Has no effect: the gradients of one group are under way at a time, in memory that is kept."""
        is_number = isinstance(max_input_buffers, int) and not isinstance(max_input_buffers, bool)
        if not is_number or max_input_buffers < 1:
            raise (ValueError if is_number else TypeError)(
                f"meshtorch: set_reduce_scatter_max_input_buffers got {max_input_buffers!r}\n  do: give a whole number from 1"
            )

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Has no effect: each backward pass ends by itself."""

    def set_manual_backward_finalization(self, enabled: bool) -> None:
        """Whether backward passes are left open, until finalize_backward() reduces what is left and gives gradients to the parameters."""
        for group in self._groups(recurse=True):
            group.set_ends_backward_by_hand(enabled)

    def finalize_backward(self, *, async_op: bool = False) -> GradientReductionHandle | None:
        """Ends the backward passes since the last call, of which those before the last reduced nothing (set_requires_gradient_sync)."""
        handle = GradientReductionHandle(self._groups(recurse=True))
        if async_op:
            return handle
        handle.wait()
        return None

    def set_keep_unsharded_storage(self, keep: bool, *, recurse: bool = True) -> None:
        """Has no effect: there are no graphs of a device that would hold addresses of parameters."""

    def set_post_optim_event(self, event: Any) -> None:
        """Has no effect: what the optimiser does is done when it returns."""

    def set_custom_all_gather(self, comm: Any) -> None:
        """Raises NotImplementedError: groups are gathered by meshtorch's own collectives."""
        _refuse_own_communication("set_custom_all_gather")

    def set_custom_reduce_scatter(self, comm: Any) -> None:
        """Raises NotImplementedError: gradients are reduced by meshtorch's own collectives."""
        _refuse_own_communication("set_custom_reduce_scatter")

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Raises NotImplementedError if `enable` is true."""
        if enable:
            _refuse_own_communication("set_allocate_memory_from_process_group_for_comm")

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Raises NotImplementedError."""
        _refuse_own_communication("set_symm_mem_for_comm")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
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
    module: M,
    *,
    mesh: _C.DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[nn.Parameter], _C.Placement | None] | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: Collection[nn.Parameter] | None = None,
    dp_mesh_dims: DataParallelMeshDims | None = None,
) -> M:
    """Makes one group of the parameters of the module, or of a list of them, that are in none yet, split over the mesh; see FSDP2.

    A mesh of two axes replicates over the first and shards over the second. `reshard_after_forward` is True, False, a
    number of ranks among which parts are kept, or None: True but for the module that runs first. With `dp_mesh_dims` the mesh
    is that of the parameters, of which they name the axes of batches. Returns the module.

    >>> from meshtorch.fsdp import fully_shard
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> for layer in model:
    ...     _ = fully_shard(layer, mesh=mesh)
    >>> _ = fully_shard(model, mesh=mesh)
    >>> model[0].weight.placements
    (Shard(dim=0),)
    >>> model(torch.ones(2, 4)).sum().backward()
    >>> model[0].weight.grad.to_local().shape
    torch.Size([2, 4])
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


def share_comm_ctx(modules: Sequence[FSDPModule]) -> None:
    """Has no effect: groups share what they communicate by, whatever models they are of.

    >>> from meshtorch.fsdp import fully_shard, share_comm_ctx
    >>> share_comm_ctx([fully_shard(torch.nn.Linear(4, 4), mesh=mesh), fully_shard(torch.nn.Linear(4, 4), mesh=mesh)])
    """
    _groups_of_modules(modules)


def replicate(
    module: One,
    *,
    mesh: _C.DeviceMesh | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    bucket_cap_mb: float = 25,
    find_unused_parameters: bool = False,
) -> One:
    """Keeps a copy of the module on every rank and reduces gradients in buckets during backward. Returns the module.

    >>> from meshtorch.fsdp import replicate
    >>> model = replicate(torch.nn.Linear(4, 1), mesh=mesh)
    >>> model(torch.full((1, 4), float(rank))).sum().backward()
    >>> model.weight.grad.full_tensor()  # the average over both ranks
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """
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
def no_sync(module: nn.Module) -> Iterator[None]:
    """While it is open, gradients are added up on each rank; the first backward after it reduces the sum.

    >>> from meshtorch.fsdp import no_sync, replicate
    >>> model = replicate(torch.nn.Linear(4, 1), mesh=mesh)
    >>> with no_sync(model):
    ...     model(torch.ones(1, 4)).sum().backward()
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> model.bias.grad.full_tensor()
    tensor([2.])
    """
    groups = [g for g in _C._groups_of(list(module.parameters())) if g.requires_gradient_sync]
    for group in groups:
        group.requires_gradient_sync = False
    try:
        yield
    finally:
        for group in groups:
            group.requires_gradient_sync = True


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Makes a method count as forward: parameters are whole while it runs. Does nothing to other modules.

    >>> from meshtorch.fsdp import fully_shard, register_fsdp_forward_method
    >>> class Net(torch.nn.Linear):
    ...     def generate(self, x):
    ...         return self.forward(x)
    >>> net = fully_shard(Net(4, 4), mesh=mesh)
    >>> register_fsdp_forward_method(net, "generate")
    >>> net.generate(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """
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
