"""Distributed tensors of the C++ library meshtorch, under the names of torch.distributed.tensor."""

import torch  # before _C, which needs its libraries

from . import _torch_version

_torch_version.check()  # before _C: the error of a library that does not fit says nothing

import torch._dynamo  # torch's shape functions in Python import it at their first call, which is no time for 800 modules

from . import _C, _distributions, _dtensor, _functions, _prims, device_mesh, placement_types
from ._C import (
    DTensorSpec,
    Group,
    __version__,
    destroy_process_group,
    distribute_tensor,
    get_rng_state,
    init_process_group,
    is_dtensor,
    keep_layout,
    manual_seed,
    set_fallback_policy,
    set_rng_state,
    spawn,
)
from ._dtensor import DTensor
from ._factories import empty, full, linspace, logspace, ones, rand, randn, zeros
from ._modules import distribute_module
from ._world import get_backend, get_local_rank, get_rank, get_world_size, is_initialized
from .device_mesh import DeviceMesh, init_device_mesh
from .experimental import implicit_replication, local_map
from .placement_types import Partial, Placement, Replicate, Shard
from .point_to_point import batch_send_recv, move_module, recv, send

from . import _compile, _gradients, _staging, _state_dict, _torch_fsdp, debug, experimental, fsdp, functional_collectives, parallel

_dtensor.install()
_functions.install()
_distributions.install()
_torch_fsdp.install()
_state_dict.install()
_staging.install()
_compile.install()
_gradients.install()
# What pickled tensors name, for torch.load(weights_only=True).
torch.serialization.add_safe_globals(
    [_dtensor._rebuild, device_mesh._rebuild, Partial, Replicate, Shard, placement_types._StridedShard]
)

__all__ = [
    "DTensor",
    "DTensorSpec",
    "DeviceMesh",
    "Group",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "batch_send_recv",
    "debug",
    "destroy_process_group",
    "distribute_module",
    "distribute_tensor",
    "empty",
    "experimental",
    "fsdp",
    "full",
    "functional_collectives",
    "get_backend",
    "get_local_rank",
    "get_rank",
    "get_rng_state",
    "get_world_size",
    "implicit_replication",
    "init_device_mesh",
    "init_process_group",
    "is_dtensor",
    "is_initialized",
    "keep_layout",
    "linspace",
    "local_map",
    "logspace",
    "manual_seed",
    "move_module",
    "ones",
    "parallel",
    "rand",
    "randn",
    "recv",
    "send",
    "set_fallback_policy",
    "set_rng_state",
    "spawn",
    "zeros",
]
