"""Tensors between two ranks of a group, and modules between meshes. Gradients travel back."""

from . import _C

__all__ = ["batch_send_recv", "move_module", "recv", "send"]


def send(tensor, dst, group=None, tag=0):
    """Sends to rank `dst` of the group. Gives a zero, whose backward receives the tensor's gradient."""
    return _C.batch_send_recv([(tensor, dst, tag)], [], group)[1]


def recv(like, src, group=None, tag=0):
    """The tensor that rank `src` of the group sends, of the shape and type of `like`, which it leaves alone.

    If `like` requires gradients, so does the sender's tensor, and its gradient goes back.
    """
    return _C.batch_send_recv([], [(like, src, tag)], group)[0][0]


def batch_send_recv(sends, receives, group=None):
    """All at once: sends are (tensor, dst) or (tensor, dst, tag), receives (like, src) or (like, src, tag).

    Gives the tensors received, and the zero that send gives.
    """
    return _C.batch_send_recv([_with_tag(one) for one in sends], [_with_tag(one) for one in receives], group)


def _with_tag(message):
    return (*message, 0) if len(message) == 2 else tuple(message)


def move_module(module, device_mesh, placements=None):
    """Brings the distributed parameters and buffers of a module, with their gradients, to another mesh, in place.

    `placements(name, tensor)` says how each is to lie; without it they keep theirs. Every rank of the meshes calls it.
    """
    moves = []  # all are checked before the first one communicates
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not _C.is_dtensor(tensor):
            raise ValueError(
                f"meshtorch: move_module met a plain tensor\n  name: {name}, shape {list(tensor.shape)}\n"
                "  do: call distribute_module first"
            )
        wanted = placements(name, tensor) if placements else _C.placements(tensor)
        if len(wanted) != device_mesh.ndim:
            raise ValueError(
                f"meshtorch: move_module to a mesh of {device_mesh.ndim} axes got {len(wanted)} placements\n"
                f"  name: {name}\n  do: say how each parameter is to lie, with move_module(module, mesh, placements)"
            )
        moves.append((tensor, list(wanted)))
    for tensor, wanted in moves:
        gradient = tensor.grad
        tensor.grad = None
        _C.replace_data(tensor, _C.redistribute(tensor.detach(), device_mesh, wanted))
        if gradient is not None:
            tensor.grad = _C.redistribute(gradient, device_mesh, wanted)
    return module
