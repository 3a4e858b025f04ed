"""Tensors between two ranks of a group, and modules between meshes. Gradients travel back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor, nn

from . import _C

if TYPE_CHECKING:
    from ._C import _GroupLike as Group

M = TypeVar("M", bound=nn.Module)

__all__ = ["batch_send_recv", "move_module", "recv", "send"]


def send(tensor: Tensor, dst: int, group: Group = None, tag: int = 0) -> Tensor:
    """Sends the tensor to rank `dst` of the group. Returns a zero, whose backward receives the tensor's gradient.

    >>> if rank == 0:
    ...     _ = meshtorch.send(torch.ones(2), 1)
    ... else:
    ...     assert torch.equal(meshtorch.recv(torch.empty(2), 0), torch.ones(2))
    """
    return _C.batch_send_recv([(tensor, dst, tag)], [], group)[1]


def recv(like: Tensor, src: int, group: Group = None, tag: int = 0) -> Tensor:
    """Returns the tensor that rank `src` of the group sends. It has the shape and type of `like`, which is not changed.

    If `like` requires gradients, the sender's tensor must too, and its gradient is sent back in backward.

    >>> if rank == 0:
    ...     _ = meshtorch.send(torch.ones(2), 1)
    ... else:
    ...     assert torch.equal(meshtorch.recv(torch.empty(2), 0), torch.ones(2))
    """
    return _C.batch_send_recv([], [(like, src, tag)], group)[0][0]


def batch_send_recv(
    sends: Sequence[tuple[Tensor, int] | tuple[Tensor, int, int]],
    receives: Sequence[tuple[Tensor, int] | tuple[Tensor, int, int]],
    group: Group = None,
) -> tuple[list[Tensor], Tensor]:
    """Sends and receives all at once: sends are (tensor, dst) or (tensor, dst, tag), receives (like, src) or (like, src, tag).

    Returns the tensors received, and the zero that send returns.

    >>> received, _ = meshtorch.batch_send_recv([(torch.tensor(rank), 1 - rank)], [(torch.tensor(0), 1 - rank)])
    >>> received
    [tensor(1)]
    """
    return _C.batch_send_recv([_with_tag(one) for one in sends], [_with_tag(one) for one in receives], group)


def _with_tag(message):
    return (*message, 0) if len(message) == 2 else tuple(message)


def move_module(
    module: M,
    device_mesh: _C.DeviceMesh,
    placements: Callable[[str, Tensor], Sequence[_C.Placement]] | None = None,
) -> M:
    """Moves the distributed parameters and buffers of a module, with their gradients, to another mesh, in place.

    `placements(name, tensor)` returns the placements of each; without it they keep theirs. Every rank of both meshes
    must call it. Returns the module.

    >>> linear = meshtorch.distribute_module(torch.nn.Linear(2, 4), mesh)
    >>> _ = meshtorch.move_module(linear, mesh, lambda name, tensor: [meshtorch.Shard(0)])
    >>> linear.weight.to_local().shape
    torch.Size([2, 2])
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
