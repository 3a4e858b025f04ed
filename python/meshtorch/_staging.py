"""Copies of state dicts that torch.distributed.checkpoint makes before it saves in the background: of a distributed tensor, a copy of
this rank's shard that lies as the tensor does."""

import functools

from torch.distributed.checkpoint._state_dict_stager import StateDictStager

from . import _C
from ._dtensor import with_local


def install():
    plain = StateDictStager._offload_tensor

    @functools.wraps(plain)
    def offload(self, x, memo, non_blocking=False):
        if not _C.is_dtensor(x):
            return plain(self, x, memo, non_blocking)
        shard = _C.stored_tensor(x)
        self._keep_alive(shard, memo)  # which knows it by its id
        return with_local(x, plain(self, shard, memo, non_blocking))

    StateDictStager._offload_tensor = offload
