"""Attention on split sequences, under the names of torch.distributed.tensor.experimental."""

from contextlib import contextmanager

from . import _C
from ._C import get_rotate_method, set_rotate_method

__all__ = ["context_parallel", "context_parallel_unshard", "get_rotate_method", "set_rotate_method"]


@contextmanager
def context_parallel(mesh, *, buffers=None, buffer_seq_dims=None, no_restore_buffers=None, load_balance=True):
    """While it is open, the buffers are distributed tensors, split along their sequence dims over the mesh.

    Before, they are plain tensors that every rank has in full, or tensors on a mesh with that axis, whole along it and
    along the sequence. Afterwards they have their data again, unless they are in no_restore_buffers; what was computed
    from them goes backward before that. With load_balance each rank has a
    piece from the front and one from the back, so that causal attention is equal work for all.
    """
    scope = _C.OpenContextParallel(
        mesh, list(buffers or []), list(buffer_seq_dims or []), load_balance, list(no_restore_buffers or [])
    )
    try:
        yield
    finally:
        scope.close()


def context_parallel_unshard(mesh, buffers, seq_dims, load_balance=True):
    """The whole tensors, in the order of the sequence, of what came out of a context_parallel scope."""
    return _C.context_parallel_unshard(mesh, list(buffers), list(seq_dims), load_balance)
