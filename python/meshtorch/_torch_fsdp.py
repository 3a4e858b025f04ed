"""torch.distributed.fsdp.fully_shard on a mesh of meshtorch is meshtorch's: a program keeps its import, and the mesh decides."""

from functools import wraps

import torch.distributed.fsdp as theirs

from . import _C
from . import fsdp as ours


def _precision(policy):
    """The fields of both have the same names."""
    return ours.MixedPrecisionPolicy(
        policy.param_dtype, policy.reduce_dtype, policy.output_dtype, policy.cast_forward_inputs
    )


def _offload(policy):
    return ours.CPUOffloadPolicy(policy.pin_memory) if hasattr(policy, "pin_memory") else ours.OffloadPolicy()


_CONVERTED = {"mp_policy": _precision, "offload_policy": _offload}


def install():
    plain = theirs.fully_shard

    @wraps(plain)
    def fully_shard(module, **options):
        if not isinstance(options.get("mesh"), _C.DeviceMesh):
            return plain(module, **options)
        given = {name: value for name, value in options.items() if value is not None}
        return ours.fully_shard(
            module, **{name: _CONVERTED.get(name, lambda same: same)(value) for name, value in given.items()}
        )

    theirs.fully_shard = fully_shard
