"""Attention on split sequences, under the names of torch.distributed.tensor.experimental."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from . import _C
from ._C import get_rotate_method, set_rotate_method

__all__ = ["context_parallel", "context_parallel_unshard", "get_rotate_method", "set_rotate_method"]


class _RotateMethod(Enum):
    ALL_TO_ALL = auto()
    ALL_GATHER = auto()


_ROTATE_NAMES = {_RotateMethod.ALL_TO_ALL: "ring", _RotateMethod.ALL_GATHER: "allgather"}


class _Options(threading.local):
    """What scopes and styles of a rank do where nobody says it: whether sequences are balanced, and how keys travel."""

    def __init__(self):
        self.enable_load_balance = True
        self.styles_balance = False  # whether causal sequences of styles are in balanced order, if it is enabled
        self.load_balancer = None  # by which inputs of styles were rearranged last

    @property
    def rotate_method(self):
        """One of PyTorch's two; None where the library chooses, or by ulysses."""
        return {name: method for method, name in _ROTATE_NAMES.items()}.get(get_rotate_method())

    @rotate_method.setter
    def rotate_method(self, method):
        set_rotate_method(_ROTATE_NAMES[method])


_cp_options = _Options()


@contextmanager
def context_parallel(
    mesh: _C.DeviceMesh,
    *,
    buffers: Sequence[Tensor] | None = None,
    buffer_seq_dims: Sequence[int] | None = None,
    no_restore_buffers: Collection[Tensor] | None = None,
    load_balance: bool | None = None,
) -> Iterator[None]:
    """While it is open, the buffers are distributed tensors, split along their sequence dims over the mesh.

    Before, they are plain tensors that every rank has in full, or tensors on a mesh with that axis, whole along it and
    along the sequence. Afterwards they have their data again, unless they are in no_restore_buffers; what was computed
    from them goes backward before that. With load_balance, by default that of _cp_options, which is True, each rank has
    a piece from the front and one from the back, so that causal attention is equal work for all.

    >>> from meshtorch.experimental import context_parallel
    >>> q = torch.ones(1, 1, 4, 2)  # batch, heads, sequence, features
    >>> with context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
    ...     out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).to_local()
    >>> out.shape
    torch.Size([1, 1, 2, 2])
    """
    if load_balance is None:
        load_balance = _cp_options.enable_load_balance
    scope = _C.OpenContextParallel(
        mesh, list(buffers or []), list(buffer_seq_dims or []), load_balance, list(no_restore_buffers or [])
    )
    try:
        yield
    finally:
        scope.close()


def _in_order_of(indices, tensor, dim):
    """The tensor with its positions along `dim` as a load balancer's indices say: one row of them, or one a sample."""
    indices = indices.to(tensor.device)
    if len(indices) == 1:
        return tensor.index_select(dim, indices[0])
    dim %= tensor.dim()
    if dim == 0 or len(indices) != len(tensor):
        raise ValueError(
            f"meshtorch: a load balancer has {len(indices)} orders, one a sample, for a tensor of another batch"
            f"\n  shape: {tuple(tensor.shape)}, sequence dim: {dim}\n  do: give tensors whose dim 0 is the batch, or one order for all"
        )
    return torch.stack([_in_order_of(row[None], sample, dim - 1) for row, sample in zip(indices, tensor)])


def context_parallel_unshard(
    mesh: _C.DeviceMesh,
    buffers: Sequence[Tensor],
    seq_dims: Sequence[int],
    load_balancer: Any = None,
    *,
    load_balance: bool | None = None,
) -> list[Tensor]:
    """Returns the whole tensors, in the order of the sequence, of what came out of a context_parallel scope, or of a style.

    load_balancer is what the inputs were rearranged by: a balancer, or whether they were (as load_balance).

    >>> from meshtorch.experimental import context_parallel, context_parallel_unshard
    >>> x = torch.arange(4.0)
    >>> with context_parallel(mesh, buffers=[x], buffer_seq_dims=[0]):
    ...     doubled = 2 * x
    >>> context_parallel_unshard(mesh, [doubled], [0])[0]
    tensor([0., 2., 4., 6.])
    """
    if load_balancer is None or isinstance(load_balancer, bool):
        asked = load_balance if load_balancer is None else load_balancer
        balanced = _cp_options.enable_load_balance if asked is None else asked
        return _C.context_parallel_unshard(mesh, list(buffers), list(seq_dims), balanced)
    whole = _C.context_parallel_unshard(mesh, list(buffers), list(seq_dims), False)
    back = load_balancer._generate_indices(restore=True)
    return [_in_order_of(back, one, dim) for one, dim in zip(whole, seq_dims)]
