"""local_map, implicit_replication, register_sharding and context_parallel, under the names of torch.distributed.tensor.experimental."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from .. import _C
from .._C import implicit_replication
from ..context_parallel import context_parallel, context_parallel_unshard, set_rotate_method

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
) -> Callable[..., Any]:
    """Returns a function on distributed tensors that calls `func` on their shards; without `func`, a decorator.

    in_grad_placements are the placements of each argument's gradient as the function's own backward leaves it. By default
    they are those of the argument, and Partial where it is replicated along an axis on which another argument or a result is not.

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
        )

    @wraps(func)
    def mapped(*args, **kwargs):
        values, structure = pytree.tree_flatten(args)
        tensors = [value if isinstance(value, torch.Tensor) else None for value in values]
        call = _C.LocalMapCall(
            tensors, _each(out_placements), in_placements, in_grad_placements, device_mesh, redistribute_inputs
        )
        local_args = pytree.tree_unflatten(_replaced(values, call.input, call.other_input), structure)
        result = func(*local_args, **kwargs)
        if not call.is_distributed():
            return result
        outputs, structure = pytree.tree_flatten(result)
        call.expect_outputs(len(outputs))
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
