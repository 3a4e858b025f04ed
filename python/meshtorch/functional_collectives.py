"""Collectives on plain tensors, out of place, under the names of torch.distributed._functional_collectives.

A result may still be under way: its first use waits, and so does its method wait().
"""

import torch
import torch.distributed._functional_collectives as _theirs

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
    """isinstance() tells whether a result is still under way; wait() of any tensor waits for it."""

    def trigger_wait(self):
        return wait_tensor(self)


def wait_tensors(tensors):
    """The tensors when the data of all is there."""
    return [wait_tensor(tensor) for tensor in tensors]


def _waits(async_op):
    if async_op:
        raise AssertionError(
            "meshtorch: an in-place collective of this module cannot be under way\n  do: leave async_op out, or use "
            "the collective without _inplace, whose result waits by itself"
        )


def all_gather_tensor_inplace(output_tensor, input_tensor, group=None, async_op=False, tag="", gather_dim=0):
    _waits(async_op)
    return output_tensor.copy_(all_gather_tensor(input_tensor, gather_dim, group, tag))


def all_gather_inplace(tensor_list, tensor, group=None, async_op=False, tag=""):
    """Into one tensor for each rank, all of one shape."""
    _waits(async_op)
    if any(part.shape != tensor.shape for part in tensor_list):
        raise AssertionError("meshtorch: all_gather_inplace gathers tensors of one shape\n  do: use all_gather_tensor")
    gathered = all_gather_tensor(tensor.reshape(1, -1), 0, group, tag)
    for part, row in zip(tensor_list, gathered):
        part.copy_(row.view(tensor.shape))
    return tensor_list


def reduce_scatter_tensor_inplace(output, input, op="sum", group=None, async_op=False, scatter_dim=0, tag=""):
    _waits(async_op)
    return output.copy_(reduce_scatter_tensor(input, op, scatter_dim, group, tag))


def reduce_scatter_inplace(output, input_list, op="sum", group=None, async_op=False, tag=""):
    """Of one tensor for each rank, all of the output's shape, the sum of this rank's."""
    _waits(async_op)
    if any(part.shape != output.shape for part in input_list):
        raise AssertionError(
            "meshtorch: reduce_scatter_inplace takes tensors of the output's shape\n"
            f"  output: {list(output.shape)}\n  tensors: {[list(part.shape) for part in input_list]}\n  do: use reduce_scatter_tensor"
        )
    rows = torch.stack([part.reshape(-1) for part in input_list])
    return output.copy_(reduce_scatter_tensor(rows, op, 0, group, tag).view(output.shape))


def all_reduce_inplace(tensor, op="sum", group=None, async_op=False, tag=""):
    _waits(async_op)
    return tensor.copy_(all_reduce(tensor, op, group, tag))


def all_to_all_inplace(
    output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False, tag=""
):
    _waits(async_op)
    return output.copy_(all_to_all_single(input, output_split_sizes, input_split_sizes, group, tag))


def batch_p2p_ops_inplace(op_list, peer_list, tag_list, tensors, group_name=None):
    """Messages of a group all at once: "isend" sends tensors[i] to rank peer_list[i], "irecv" fills it.

    Gives the tensors that were filled, and tensors without elements in the place of those that were sent.
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
