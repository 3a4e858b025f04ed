"""Whole state dicts by torch.distributed.checkpoint.state_dict (`full_state_dict=True`): what it does to PyTorch's own distributed
tensors, it does to meshtorch's."""

import torch
import torch.distributed._state_dict_utils as utils
import torch.distributed.tensor as stock

from . import _C
from ._C import distribute_tensor

_plain_iterate, _plain_distribute_tensors = utils._iterate_state_dict, utils._distribute_tensors


class _EitherType(type):
    def __instancecheck__(cls, value):
        return isinstance(value, stock.DTensor) or (isinstance(value, torch.Tensor) and _C.is_dtensor(value))


class _Either(metaclass=_EitherType):
    """A distributed tensor of PyTorch's or of meshtorch's."""

    from_local = stock.DTensor.from_local


def _iterate(iter_object, sharded_tensor_func, dtensor_func, *args, **kwargs):
    """What gathers PyTorch's tensors speaks of PyTorch's placements."""
    gathers = dtensor_func.__qualname__.startswith("_gather_state_dict")

    def either(value, *rest):
        return value.full_tensor() if _C.is_dtensor(value) else dtensor_func(value, *rest)

    return _plain_iterate(iter_object, sharded_tensor_func, either if gathers else dtensor_func, *args, **kwargs)


def _distribute_either(tensor, device_mesh, placements):
    of = distribute_tensor if isinstance(device_mesh, _C.DeviceMesh) else stock.distribute_tensor
    return of(tensor, device_mesh, placements)


def _distribute_tensors(local_state_dict, keys, device, pg=None):
    """Puts what all ranks have whole, (tensor, whole) under a key, into the tensors."""
    for key in keys:
        pair = local_state_dict.get(key)
        if not isinstance(pair, tuple) or not _C.is_dtensor(pair[0]):
            continue
        local, whole = pair
        part = distribute_tensor(whole, local.device_mesh, local.placements, src_data_rank=None)
        if not local.is_meta:
            local.to_local().copy_(part.to_local())
        local_state_dict[key] = part if local.is_meta else local
    _plain_distribute_tensors(local_state_dict, keys, device, pg)


def install():
    utils.DTensor, utils.distribute_tensor = _Either, _distribute_either
    utils._iterate_state_dict, utils._distribute_tensors = _iterate, _distribute_tensors
