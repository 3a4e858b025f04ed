"""replicate of torch.distributed._composable, on a mesh of meshtorch: the mesh decides."""

from torch.distributed._composable.replicate import replicate as _plain_replicate

from . import _C, fsdp

# Arguments of PyTorch's that change where gradients lie in memory, and no result.
_OF_MEMORY = {"device_id", "device_ids", "gradient_as_bucket_view", "static_graph"}


def replicate(module, ignored_modules=None, *, device_mesh=None, mesh=None, mp_policy=None, **options):
    """meshtorch.fsdp.replicate of the module over a mesh of meshtorch; without one, what PyTorch's is."""
    if not isinstance(device_mesh or mesh, _C.DeviceMesh):
        return _plain_replicate(module, ignored_modules, **({"device_mesh": device_mesh} if device_mesh else {}), **options)
    taken = {name: options.pop(name) for name in ("bucket_cap_mb", "find_unused_parameters") if name in options}
    unknown = sorted(set(options) - _OF_MEMORY)
    if unknown or ignored_modules:
        raise NotImplementedError(
            f"meshtorch: replicate got {', '.join(unknown) or 'ignored_modules'}, which it does not have\n"
            "  do: leave it out, or use torch.nn.parallel.DistributedDataParallel"
        )
    policy = {} if mp_policy is None else {"mp_policy": mp_policy}
    return fsdp.replicate(module, mesh=device_mesh if mesh is None else mesh, **taken, **policy)


def _state_of(module):
    """The group of a module that was replicated over a mesh of meshtorch; else what PyTorch's has of it."""
    group = fsdp._state_of(module)
    return _plain_replicate.state(module) if group is None else group


replicate.state = _state_of
