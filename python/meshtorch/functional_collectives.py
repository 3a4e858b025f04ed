"""Collectives on plain tensors, out of place, under the names of torch.distributed._functional_collectives.

A result may still be under way: its first use waits, and so does its method wait().
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed._functional_collectives as _theirs
from torch import Tensor

from . import _C
from ._C import (
    all_gather_into_tensor_coalesced,
    all_gather_tensor,
    all_gather_tensor_autograd,
    all_reduce,
    all_reduce_autograd,
    all_reduce_coalesced,
    all_to_all_single,
    all_to_all_single_autograd,
    barrier,
    broadcast,
    permute_tensor,
    reduce_scatter_tensor,
    reduce_scatter_tensor_autograd,
    reduce_scatter_tensor_coalesced,
    wait_tensor,
)
from .point_to_point import batch_send_recv

if TYPE_CHECKING:
    from ._C import _GroupLike as Group

__all__ = [
    "AsyncCollectiveTensor",
    "all_gather_inplace",
    "all_gather_into_tensor_coalesced",
    "all_gather_single",
    "all_gather_single_autograd",
    "all_gather_single_coalesced",
    "all_gather_tensor",
    "all_gather_tensor_autograd",
    "all_gather_tensor_inplace",
    "all_reduce",
    "all_reduce_autograd",
    "all_reduce_coalesced",
    "all_reduce_inplace",
    "all_to_all_inplace",
    "all_to_all_single",
    "all_to_all_single_autograd",
    "barrier",
    "batch_p2p_ops_inplace",
    "broadcast",
    "permute_tensor",
    "reduce_scatter_inplace",
    "reduce_scatter_single",
    "reduce_scatter_single_autograd",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_inplace",
    "wait_tensor",
    "wait_tensors",
]

# The names that torch 2.13 has beside the older ones.
all_gather_single, all_gather_single_autograd = all_gather_tensor, all_gather_tensor_autograd
all_gather_single_coalesced = all_gather_into_tensor_coalesced
reduce_scatter_single, reduce_scatter_single_autograd = reduce_scatter_tensor, reduce_scatter_tensor_autograd
reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced


class _AsyncCollectiveType(type(torch.Tensor)):
    def __instancecheck__(cls, value):
        is_theirs = isinstance(value, _theirs.AsyncCollectiveTensor)
        return is_theirs or (isinstance(value, torch.Tensor) and _C.is_pending(value))


class AsyncCollectiveTensor(torch.Tensor, metaclass=_AsyncCollectiveType):
    """isinstance() tells whether the result of a collective is still under way; wait() of any tensor waits for it.

    >>> from meshtorch.functional_collectives import AsyncCollectiveTensor, all_reduce
    >>> total = all_reduce(torch.ones(2), "sum", mesh).wait()
    >>> isinstance(total, AsyncCollectiveTensor)
    False
    """

    def trigger_wait(self) -> Tensor:
        """Returns the tensor when its data is there."""
        return wait_tensor(self)


def wait_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the tensors when the data of all is there.

    >>> from meshtorch.functional_collectives import all_reduce, wait_tensors
    >>> wait_tensors([all_reduce(torch.ones(1), "sum", mesh)])
    [tensor([2.])]
    """
    return [wait_tensor(tensor) for tensor in tensors]


def _waits(async_op):
    if async_op:
        raise AssertionError(
            "meshtorch: an in-place collective of this module cannot be under way\n  do: leave async_op out, or use "
            "the collective without _inplace, whose result waits by itself"
        )


def all_gather_tensor_inplace(
    output_tensor: Tensor, input_tensor: Tensor, group: Group = None, async_op: bool = False, tag: str = "", gather_dim: int = 0
) -> Tensor:
    """Fills `output_tensor` with the tensors of all ranks, put together along `gather_dim`, and returns it.

    >>> from meshtorch.functional_collectives import all_gather_tensor_inplace
    >>> all_gather_tensor_inplace(torch.empty(2), torch.tensor([float(rank)]), mesh)
    tensor([0., 1.])
    """
    _waits(async_op)
    return output_tensor.copy_(all_gather_tensor(input_tensor, gather_dim, group, tag))


def all_gather_inplace(
    tensor_list: list[Tensor], tensor: Tensor, group: Group = None, async_op: bool = False, tag: str = ""
) -> list[Tensor]:
    """Fills `tensor_list`, one tensor for each rank, all of one shape, and returns it.

    >>> from meshtorch.functional_collectives import all_gather_inplace
    >>> all_gather_inplace([torch.empty(1), torch.empty(1)], torch.tensor([float(rank)]), mesh)
    [tensor([0.]), tensor([1.])]
    """
    _waits(async_op)
    if any(part.shape != tensor.shape for part in tensor_list):
        raise AssertionError("meshtorch: all_gather_inplace gathers tensors of one shape\n  do: use all_gather_tensor")
    gathered = all_gather_tensor(tensor.reshape(1, -1), 0, group, tag)
    for part, row in zip(tensor_list, gathered):
        part.copy_(row.view(tensor.shape))
    return tensor_list


def reduce_scatter_tensor_inplace(
    output: Tensor,
    input: Tensor,
    op: Any = "sum",
    group: Group = None,
    async_op: bool = False,
    scatter_dim: int = 0,
    tag: str = "",
) -> Tensor:
    """Fills `output` with this rank's part of the reduced `input`, split along `scatter_dim`, and returns it.

    >>> from meshtorch.functional_collectives import reduce_scatter_tensor_inplace
    >>> reduce_scatter_tensor_inplace(torch.empty(1), torch.ones(2), "sum", mesh)
    tensor([2.])
    """
    _waits(async_op)
    return output.copy_(reduce_scatter_tensor(input, op, scatter_dim, group, tag))


def reduce_scatter_inplace(
    output: Tensor, input_list: Sequence[Tensor], op: Any = "sum", group: Group = None, async_op: bool = False, tag: str = ""
) -> Tensor:
    """Fills `output` with the reduction of the tensors that all ranks give for this rank, and returns it.

    `input_list` has one tensor for each rank, all of the output's shape.

    >>> from meshtorch.functional_collectives import reduce_scatter_inplace
    >>> reduce_scatter_inplace(torch.empty(1), [torch.ones(1), torch.zeros(1)], "sum", mesh)
    tensor([2.])
    """
    _waits(async_op)
    if any(part.shape != output.shape for part in input_list):
        raise AssertionError(
            "meshtorch: reduce_scatter_inplace takes tensors of the output's shape\n"
            f"  output: {list(output.shape)}\n  tensors: {[list(part.shape) for part in input_list]}\n  do: use reduce_scatter_tensor"
        )
    rows = torch.stack([part.reshape(-1) for part in input_list])
    return output.copy_(reduce_scatter_tensor(rows, op, 0, group, tag).view(output.shape))


def all_reduce_inplace(tensor: Tensor, op: Any = "sum", group: Group = None, async_op: bool = False, tag: str = "") -> Tensor:
    """Replaces the tensor's values by the reduction of those of all ranks, and returns it.

    >>> from meshtorch.functional_collectives import all_reduce_inplace
    >>> all_reduce_inplace(torch.ones(1), "sum", mesh)
    tensor([2.])
    """
    _waits(async_op)
    return tensor.copy_(all_reduce(tensor, op, group, tag))


def all_to_all_inplace(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
    tag: str = "",
) -> Tensor:
    """Sends piece i of `input` to rank i, fills `output` with the pieces from all ranks in their order, and returns it.

    >>> from meshtorch.functional_collectives import all_to_all_inplace
    >>> all_to_all_inplace(torch.empty(2), torch.arange(2.0) + 10 * rank, group=mesh)
    tensor([ 0., 10.])
    """
    _waits(async_op)
    return output.copy_(all_to_all_single(input, output_split_sizes, input_split_sizes, group, tag))


def batch_p2p_ops_inplace(
    op_list: Sequence[str], peer_list: Sequence[int], tag_list: Sequence[int], tensors: Sequence[Tensor], group_name: Group = None
) -> list[Tensor]:
    """Messages of a group all at once: "isend" sends tensors[i] to rank peer_list[i], "irecv" fills it.

    Returns the tensors that were filled, and tensors without elements in the place of those that were sent.

    >>> from meshtorch.functional_collectives import batch_p2p_ops_inplace
    >>> both = [torch.tensor([float(rank)]), torch.empty(1)]
    >>> batch_p2p_ops_inplace(["isend", "irecv"], [1 - rank, 1 - rank], [0, 0], both, mesh)[1]
    tensor([1.])
    """
    unknown = [op for op in op_list if op not in ("isend", "irecv")]
    if unknown or not len(op_list) == len(peer_list) == len(tag_list) == len(tensors):
        raise ValueError(
            f"meshtorch: batch_p2p_ops_inplace got {len(op_list)} operations, {len(peer_list)} peers, {len(tag_list)} tags and "
            f'{len(tensors)} tensors\n  operations: {list(op_list)}\n  do: give one of each for every message, "isend" or "irecv"'
        )
    messages = list(zip(tensors, peer_list, tag_list))
    sends = [message for op, message in zip(op_list, messages) if op == "isend"]
    receives = [message for op, message in zip(op_list, messages) if op == "irecv"]
    received = iter(batch_send_recv(sends, receives, group_name or None)[0])
    return [
        tensor.copy_(next(received)) if op == "irecv" else tensor.new_empty(0) for op, tensor in zip(op_list, tensors)
    ]
