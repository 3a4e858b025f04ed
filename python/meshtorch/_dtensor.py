"""DTensor: what torch.Tensor objects that the library distributed can do, and how Python sees them.

Operators return torch.Tensor objects, distributed or not. So the names of a distributed tensor are attributes of
torch.Tensor which plain tensors do not show: reading one of them raises AttributeError, as if it were not there.
"""

from copy import deepcopy
from multiprocessing.reduction import ForkingPickler
from types import MethodType

import torch
from torch._tensor import _rebuild_from_type_v2
from torch.multiprocessing.reductions import reduce_tensor

from . import _C, _checkpoint


def _is_absent(tensor, name):
    return AttributeError(f"'{type(tensor).__name__}' object has no attribute '{name}'")


class _Method:
    """A method that only distributed tensors have."""

    def __init__(self, name, function):
        self._name, self._function = name, function

    def __get__(self, tensor, owner=None):
        if tensor is None:
            return self._function
        if not _C.is_dtensor(tensor):
            raise _is_absent(tensor, self._name)
        return MethodType(self._function, tensor)


class _Value:
    """A value that only distributed tensors have; on others the name is as free as if it were not there."""

    def __init__(self, name, function):
        self._name, self._function = name, function

    def __get__(self, tensor, owner=None):
        if tensor is None:
            return self
        if _C.is_dtensor(tensor):
            return self._function(tensor)
        if self._name in tensor.__dict__:
            return tensor.__dict__[self._name]
        raise _is_absent(tensor, self._name)

    def __set__(self, tensor, value):
        if _C.is_dtensor(tensor):
            raise AttributeError(
                f"meshtorch: {self._name} of a distributed tensor cannot be set\n  do: use redistribute()"
            )
        tensor.__dict__[self._name] = value

    def __delete__(self, tensor):
        if _C.is_dtensor(tensor) or self._name not in tensor.__dict__:
            raise _is_absent(tensor, self._name)
        del tensor.__dict__[self._name]


_METHODS = {
    "to_local": _C.to_local,
    "full_tensor": _C.full_tensor,
    "redistribute": _C.redistribute,
    "__create_write_items__": _checkpoint.create_write_items,
    "__create_chunk_list__": _checkpoint.create_chunk_list,
    "__get_tensor_shard__": _checkpoint.get_tensor_shard,
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
    """A tensor of the global shape whose data is split over a mesh; isinstance() tells it from plain tensors.

    >>> x = meshtorch.distribute_tensor(torch.arange(4.0), mesh, [meshtorch.Shard(0)])
    >>> isinstance(x, meshtorch.DTensor), x.shape, x.placements
    (True, torch.Size([4]), (Shard(dim=0),))
    >>> (2 * x).full_tensor()
    tensor([0., 2., 4., 6.])
    """

    from_local = staticmethod(_C.from_local)
    to_local = _C.to_local
    full_tensor = _C.full_tensor
    redistribute = _C.redistribute

    def __new__(cls, local_tensor, spec=None, *, requires_grad=False):
        """The tensor that lies as a DTensorSpec says, with this rank's shard; no gradients go to the shard."""
        if spec is None:
            raise TypeError(
                "meshtorch: a DTensor is made of a shard and a DTensorSpec\n"
                "  do: use DTensor.from_local, distribute_tensor or a factory"
            )
        tensor = _rebuild(local_tensor.detach(), spec.mesh, list(spec.placements), tuple(spec.shape), spec.stride, False)
        return tensor.requires_grad_(requires_grad)


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
    value = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    if issubclass(type(tensor), torch.nn.Parameter):
        value = type(tensor)(value, tensor.requires_grad)
    memo[id(tensor)] = value
    if tensor.grad is not None:
        value.grad = tensor.grad.__deepcopy__(memo)
    value.__dict__.update(deepcopy(tensor.__dict__, memo))
    return value


def _rebuild(local, mesh, placements, shape, stride, requires_grad):
    """What pickle calls: this rank's shard on the mesh of the reader's world."""
    with torch.no_grad():
        tensor = _C.from_local(local, mesh, placements, shape=shape, stride=stride)
    return tensor.requires_grad_(requires_grad)


def _lies(tensor):
    """What makes a distributed tensor of a shard, beside the shard."""
    return tensor.device_mesh, tensor.placements, tuple(tensor.shape), tensor.stride()


def with_local(tensor, local):
    """A tensor that lies as this one does, with another shard."""
    return _rebuild(local, *_lies(tensor), False)


def _reduced(tensor, protocol):
    """Each rank pickles its own shard; to read it takes a world that has the mesh's ranks."""
    content = (_C.stored_tensor(tensor), *_lies(tensor), tensor.requires_grad)
    attributes = tensor.__dict__
    return (_rebuild_from_type_v2, (_rebuild, torch.Tensor, content, attributes)) if attributes else (_rebuild, content)


def _reduced_for_processes(tensor):
    """What queues and pipes of torch.multiprocessing send; they put the memory of plain tensors, shards among them, where both see it."""
    return tensor.__reduce_ex__(2) if _C.is_dtensor(tensor) else reduce_tensor(tensor)


def _replace_for_distributed(name, function, cls=torch.Tensor):
    """Makes the method `name` of the class call `function` for distributed tensors."""
    plain = getattr(cls, name)

    def method(self, *args, **kwargs):
        return function(self, *args, **kwargs) if _C.is_dtensor(self) else plain(self, *args, **kwargs)

    method.__name__, method.__doc__ = name, plain.__doc__
    setattr(cls, name, method)


def _new_tensor(tensor, data, *, dtype=None, device=None, requires_grad=False):
    """A plain tensor of this one's type, as of PyTorch's DTensor."""
    value = torch.as_tensor(data, dtype=dtype or tensor.dtype, device=device or tensor.device)
    return value.detach().clone().requires_grad_(requires_grad)


def _new(tensor, *args, **kwargs):
    """The older form of new_empty, given sizes, and of new_tensor, given values."""
    sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
    if all(isinstance(size, int) for size in sizes):
        return tensor.new_empty(sizes or (0,), **kwargs)
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).new(*args, **kwargs)


def install():
    """Gives torch.Tensor the attributes of distributed tensors, and its own methods that read data the means to."""
    for name, function in _METHODS.items():
        setattr(torch.Tensor, name, _Method(name, function))
    for name, function in _VALUES.items():
        setattr(torch.Tensor, name, _Value(name, function))
    torch.Tensor.wait = _wait  # of every tensor: a collective's result may be there already
    _replace_for_distributed("__repr__", lambda self, **_: _described(self))
    for cls in (torch.Tensor, torch.nn.Parameter):
        _replace_for_distributed("__deepcopy__", _copied, cls)
    _replace_for_distributed("__reduce_ex__", _reduced)
    for cls in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(cls, _reduced_for_processes)
    # The global values, as those of item(); torch.Tensor's own look into memory.
    _replace_for_distributed("tolist", lambda self: self.detach().full_tensor().tolist())
    _replace_for_distributed("numpy", lambda self, **options: self.full_tensor().numpy(**options))
    _replace_for_distributed("new_tensor", _new_tensor)
    _replace_for_distributed("new", _new)
