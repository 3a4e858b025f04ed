"""What flex_attention needs where queries are split along the sequence: all keys and values."""

from ...functional_collectives import all_gather_tensor_autograd


def flex_cp_allgather(k, v, seq_dim, pg_name):
    """Keys and values of all ranks of the group, in its order; their gradients are summed and go back to the ranks."""
    return (
        all_gather_tensor_autograd(k.contiguous(), seq_dim, pg_name).wait(),
        all_gather_tensor_autograd(v.contiguous(), seq_dim, pg_name).wait(),
    )
