"""Collectives on plain tensors, out of place, under the names of torch.distributed._functional_collectives.

A result may still be under way: its first use waits, and so does its method wait().
"""

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
