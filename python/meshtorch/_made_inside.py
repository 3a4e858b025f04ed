"""Tensors that functions of torch in Python make inside: distributed ones, where the function is given such."""

import torch
from torch.overrides import TorchFunctionMode

from . import _C
from ._factories import empty, rand, randn

_OF_NUMBERS = {torch.arange, torch.eye, torch.full, torch.ones, torch.tensor, torch.zeros}
# Memory without values is no replica that ranks could compare, and numbers have to be the same on every rank.
_BY_MESHTORCH = {torch.empty: empty, torch.rand: rand, torch.randn: randn}


class MadeInside(TorchFunctionMode):
    """A scope: new tensors are replicated over the mesh, and random ones are the same numbers on every rank."""

    def __init__(self, mesh):
        super().__init__()
        self.mesh = mesh

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in _BY_MESHTORCH:
            kwargs.pop("device", None)
            return _BY_MESHTORCH[function](*args, device_mesh=self.mesh, **kwargs)
        made = function(*args, **kwargs)
        is_new = function in _OF_NUMBERS and not _C.is_dtensor(made)  # a scope inside has made it so already
        return _C.from_local(made, self.mesh) if is_new else made


def mesh_of(values):
    """The mesh of the first distributed tensor; None if there is none."""
    for value in values:
        if isinstance(value, torch.Tensor) and _C.is_dtensor(value):
            return value.device_mesh
    return None
