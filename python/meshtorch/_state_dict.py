"""State dicts in torch.distributed.checkpoint: what it does to PyTorch's own distributed tensors, it does to meshtorch's. It makes whole
ones (`full_state_dict=True`) and copies in memory."""

import torch
import torch.distributed._state_dict_utils as utils
import torch.distributed.tensor as stock

from . import _C
from ._C import distribute_tensor
from ._dtensor import with_local

_plain_iterate, _plain_distribute_tensors = utils._iterate_state_dict, utils._distribute_tensors


class _EitherType(type):
    def __instancecheck__(cls, value):
        return isinstance(value, stock.DTensor) or (isinstance(value, torch.Tensor) and _C.is_dtensor(value))


class _Either(metaclass=_EitherType):
    """A distributed tensor of PyTorch's or of meshtorch's."""

    from_local = stock.DTensor.from_local


def _iterate(iter_object, sharded_tensor_func, dtensor_func, tensor_func, **kwargs):
    """What gathers PyTorch's tensors speaks of PyTorch's placements; what copies them puts another shard into them."""
    of = {
        "_gather_state_dict": lambda value, *_: value.full_tensor(),
        "_create_cpu_state_dict": lambda value, *rest: with_local(value, tensor_func(_C.stored_tensor(value), *rest)),
    }.get(dtensor_func.__qualname__.split(".")[0], dtensor_func)

    def either(value, *rest):
        return (of if _C.is_dtensor(value) else dtensor_func)(value, *rest)

    return _plain_iterate(iter_object, sharded_tensor_func, either, tensor_func, **kwargs)


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
