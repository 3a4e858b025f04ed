"""DTensor: what torch.Tensor objects that the library distributed can do, and how Python sees them.

Operators return torch.Tensor objects, distributed or not. So the names of a distributed tensor are attributes of
torch.Tensor which plain tensors do not show: reading one of them raises AttributeError, as if it were not there.
"""

from types import MethodType

import torch

from . import _C


class _OfDistributed:
    """An attribute that only distributed tensors have: a method, or a value if `is_value`."""

    def __init__(self, name, function, is_value=False):
        self._name, self._function, self._is_value = name, function, is_value

    def __get__(self, tensor, owner=None):
        if tensor is None:
            return self if self._is_value else self._function
        if not _C.is_dtensor(tensor):
            raise AttributeError(f"'{type(tensor).__name__}' object has no attribute '{self._name}'")
        return self._function(tensor) if self._is_value else MethodType(self._function, tensor)


_METHODS = {
    "to_local": _C.to_local,
    "full_tensor": _C.full_tensor,
    "redistribute": _C.redistribute,
}
_VALUES = {
    "placements": _C.placements,
    "device_mesh": _C.device_mesh,
    "_local_tensor": _C.local_tensor,
    "_spec": _C.spec,
}


class _DTensorType(type):
    def __instancecheck__(cls, value):
        return isinstance(value, torch.Tensor) and _C.is_dtensor(value)


class DTensor(metaclass=_DTensorType):
    """A tensor of the global shape whose data is split over a mesh; isinstance() tells it from plain tensors."""

    from_local = staticmethod(_C.from_local)
    to_local = _C.to_local
    full_tensor = _C.full_tensor
    redistribute = _C.redistribute

    def __new__(cls, *args, **kwargs):
        raise TypeError(
            "meshtorch: DTensor has no constructor\n  do: use DTensor.from_local, distribute_tensor or a factory"
        )


def _wait(tensor):
    """The tensor when its data is there: the result of a collective may be under way."""
    return _C.wait_tensor(tensor)


def _described(tensor):
    """Global shape, placements, mesh and this rank's shard."""
    parts = [
        f"shape={tuple(tensor.shape)}",
        f"placements={tensor.placements}",
        f"device_mesh={tensor.device_mesh}",
        f"local_tensor={tensor._local_tensor!r}",
    ]
    if tensor.grad_fn is not None:
        parts.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad:
        parts.append("requires_grad=True")
    return f"DTensor({', '.join(parts)})"


def _copied(tensor, memo):
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(
            "meshtorch: only distributed tensors that are no operator's result can be deep-copied\n"
            "  do: call detach() on it first"
        )
    memo[id(tensor)] = copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        copy.grad = tensor.grad.__deepcopy__(memo)
    return copy


def _rebuild(local, mesh, placements, shape, stride, requires_grad):
    """What pickle calls: this rank's shard on the mesh of the reader's world."""
    with torch.no_grad():
        tensor = _C.from_local(local, mesh, placements, shape=shape, stride=stride)
    return tensor.requires_grad_(requires_grad)


def _reduced(tensor, protocol):
    """Each rank pickles its own shard; to read it takes a world that has the mesh's ranks."""
    content = (tensor.device_mesh, tensor.placements, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
    return _rebuild, (_C.stored_tensor(tensor), *content)


def _replace_for_distributed(name, function):
    """Makes torch.Tensor's method `name` call `function` for distributed tensors."""
    plain = getattr(torch.Tensor, name)

    def method(self, *args, **kwargs):
        return function(self, *args, **kwargs) if _C.is_dtensor(self) else plain(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, plain.__doc__
    setattr(torch.Tensor, name, method)


def install():
    """Gives torch.Tensor the attributes of distributed tensors, and its own methods that read data the means to."""
    for name, function in _METHODS.items():
        setattr(torch.Tensor, name, _OfDistributed(name, function))
    for name, function in _VALUES.items():
        setattr(torch.Tensor, name, _OfDistributed(name, function, is_value=True))
    torch.Tensor.wait = _wait  # of every tensor: a collective's result may be there already
    _replace_for_distributed("__repr__", lambda self, **_: _described(self))
    _replace_for_distributed("__deepcopy__", _copied)
    _replace_for_distributed("__reduce_ex__", _reduced)
