"""distribute_module: parameters of a torch.nn.Module become distributed in place, functions become its hooks."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from . import _C

M = TypeVar("M", bound=nn.Module)


def _replicate_over(module, mesh):
    for parameter in module._parameters.values():
        replicated = None if parameter is None else _C.replicated_over(parameter, mesh)
        if replicated is not None:
            _C.replace_data(parameter, replicated)
    for name, buffer in module._buffers.items():
        replicated = None if buffer is None else _C.replicated_over(buffer, mesh)
        if replicated is not None:
            module._buffers[name] = replicated


def _taking_module(fn, name, values):
    """The function of (module, values, mesh) that `fn` is, or stands for if it takes no module."""
    count = len(inspect.signature(fn).parameters)
    if count == 3:
        return fn
    if count != 2:
        raise ValueError(f"meshtorch: {name} should take in 3 arguments, but got {count} arguments!")
    warnings.warn(
        f"Deprecating {name} that takes two arguments ({values}, device_mesh), "
        f"please use {name} that takes in (module, {values}, device_mesh) instead!",
        FutureWarning,
        stacklevel=3,
    )
    return lambda module, given, mesh: fn(given, mesh)


def distribute_module(
    module: M,
    device_mesh: _C.DeviceMesh | None = None,
    partition_fn: Callable[[str, nn.Module, _C.DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> M:
    """Lets partition_fn(name, module, mesh) distribute parameters, replicates the others, and registers hooks.

    Parameters stay the same objects, so that optimizers that hold them see the change. input_fn(module, inputs, mesh)
    and output_fn(module, outputs, mesh) become hooks of the module. Returns the module.

    >>> linear = meshtorch.distribute_module(torch.nn.Linear(2, 3), mesh)
    >>> linear.weight.placements
    (Replicate(),)
    """
    if getattr(module, "_distribute_module_applied", False):
        raise RuntimeError(
            "meshtorch: distribute_module should only be called once on a module, but it has already been called on "
            f"this module!\n  module: {type(module).__name__}\n  do: distribute everything in one call, with one "
            "partition_fn"
        )
    mesh = _C.mesh_or_current(device_mesh)
    edges = [
        fn and _taking_module(fn, name, values)
        for fn, name, values in ((input_fn, "input_fn", "inputs"), (output_fn, "output_fn", "outputs"))
    ]
    for tensor in (*module.parameters(), *module.buffers()):
        _C.check_replicates_over(tensor, mesh)
    for name, part in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, part, mesh)
        _replicate_over(part, mesh)
    on_input, on_output = edges
    if on_input:
        module.register_forward_pre_hook(lambda part, inputs: on_input(part, inputs, mesh))
    if on_output:
        module.register_forward_hook(lambda part, _, outputs: on_output(part, outputs, mesh))
    module._distribute_module_applied = True
    return module
