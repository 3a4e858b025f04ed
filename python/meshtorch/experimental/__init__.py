"""local_map, implicit_replication, register_sharding and context_parallel, under the names of torch.distributed.tensor.experimental."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from .. import _C
from .._C import implicit_replication
from ..context_parallel import context_parallel, context_parallel_unshard, set_rotate_method
from ._spmd_types import Checked

F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "context_parallel",
    "context_parallel_unshard",
    "implicit_replication",
    "local_map",
    "register_sharding",
    "set_rotate_method",
]


def _each(placements):
    """Placements of several outputs are a tuple of lists; a list alone is that of the only one."""
    return placements if isinstance(placements, tuple) else (placements,)


def _replaced(values, on_tensor, on_other):
    """The values with on_tensor applied to the tensors among them; on_other only looks at the others."""
    result = []
    for value in values:
        if isinstance(value, torch.Tensor):
            result.append(on_tensor(value))
        else:
            on_other()
            result.append(value)
    return result


def local_map(
    func: Callable[..., Any] | None = None,
    out_placements: Any = None,
    in_placements: Any = None,
    in_grad_placements: Any = None,
    device_mesh: _C.DeviceMesh | None = None,
    *,
    redistribute_inputs: bool = False,
    spmd_types: bool = False,
) -> Callable[..., Any]:
    """Returns a function on distributed tensors that calls `func` on their shards; without `func`, a decorator.

    in_grad_placements are the placements of each argument's gradient as the function's own backward leaves it. By default
    they are those of the argument, and Partial where it is replicated along an axis on which another argument or a result is not.
    With spmd_types the package of that name checks how values differ between ranks, and its types give the placements of gradients.

    >>> from meshtorch.experimental import local_map
    >>> @local_map(out_placements=[meshtorch.Shard(0)], in_placements=([meshtorch.Shard(0)],), device_mesh=mesh)
    ... def double(shard):
    ...     return 2 * shard
    >>> double(meshtorch.ones(3, device_mesh=mesh, placements=[meshtorch.Shard(0)])).full_tensor()
    tensor([2., 2., 2.])
    """
    if func is None:
        return partial(
            local_map,
            out_placements=out_placements,
            in_placements=in_placements,
            in_grad_placements=in_grad_placements,
            device_mesh=device_mesh,
            redistribute_inputs=redistribute_inputs,
            spmd_types=spmd_types,
        )

    @wraps(func)
    def mapped(*args, **kwargs):
        values, structure = pytree.tree_flatten(args)
        tensors = [value if isinstance(value, torch.Tensor) else None for value in values]
        gradients, checked = in_grad_placements, None
        if spmd_types and any(_C.is_dtensor(tensor) for tensor in tensors if tensor is not None):
            checked = Checked(device_mesh or next(t.device_mesh for t in tensors if t is not None and _C.is_dtensor(t)))
            placements = in_placements or tuple(t.placements if t is not None and _C.is_dtensor(t) else None for t in tensors)
            gradients = checked.gradients(placements, in_grad_placements)
        call = _C.LocalMapCall(tensors, _each(out_placements), in_placements, gradients, device_mesh, redistribute_inputs)
        local_values = _replaced(values, call.input, call.other_input)
        if checked:
            local_values = [
                checked.mark(value, *types) if isinstance(value, torch.Tensor) and types[0] is not None else value
                for value, types in zip(local_values, zip(placements, gradients))
            ]
        with checked.running() if checked else nullcontext():
            result = func(*pytree.tree_unflatten(local_values, structure), **kwargs)
        if not call.is_distributed():
            return result
        outputs, structure = pytree.tree_flatten(result)
        call.expect_outputs(len(outputs))
        if checked:
            outputs = [
                checked.checked_output(value, each) if isinstance(value, torch.Tensor) and each is not None else value
                for value, each in zip(outputs, _each(out_placements))
            ]
        return pytree.tree_unflatten(_replaced(outputs, call.output, call.other_output), structure)

    return mapped


def _name_of(op):
    """As rules have it: without "aten::", the overload after a dot."""
    return op.name().removeprefix("aten::")


def register_sharding(op: Any) -> Callable[[F], F]:
    """Returns a decorator of a function that lists how `op`, an operator of torch.ops or several, may run on one mesh axis.

    It takes the operator's arguments, tensors as DTensorSpecs, and returns [(placements of results, placements of
    arguments), …], None where an argument is no tensor. What is not listed does not happen, except that all are whole.

    >>> from meshtorch.experimental import register_sharding
    >>> @register_sharding(torch.ops.aten.sinh.default)
    ... def options(x):
    ...     return [([meshtorch.Shard(dim)], [meshtorch.Shard(dim)]) for dim in range(x.ndim)]
    >>> torch.sinh(meshtorch.zeros(2, device_mesh=mesh, placements=[meshtorch.Shard(0)])).placements
    (Shard(dim=0),)
    """
    ops = op if isinstance(op, (list, tuple)) else [op]

    def register(function):
        for one in ops:
            _C.register_sharding(_name_of(one), function)
        return function

    return register
