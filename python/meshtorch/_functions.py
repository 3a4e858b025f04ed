"""Functions of torch that are written in Python and make plain tensors inside: told to make distributed ones, or replicated by a scope."""

import functools

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from . import _C
from ._factories import rand


def _tensors(args, kwargs):
    return [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]


def _replace_for_distributed(module, name, function):
    """Makes `module.name` call `function` where all tensors that it is given are distributed."""
    plain = getattr(module, name)

    @functools.wraps(plain)
    def call(*args, **kwargs):
        tensors = _tensors(args, kwargs)
        is_ours = bool(tensors) and all(_C.is_dtensor(t) for t in tensors)
        return function(plain, *args, **kwargs) if is_ours else plain(*args, **kwargs)

    setattr(module, name, call)


def _with_numbers_of_the_program(plain, *args, **kwargs):
    """The plain tensors that it makes depend on shapes and numbers alone, so that they are equal on all ranks."""
    with _C.implicit_replication():
        return plain(*args, **kwargs)


def _with_equal_samples(dims):
    """Fractional pooling draws where its windows lie: the same numbers on every rank."""

    def pool(plain, input, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
        if _random_samples is None:
            batch = 1 if input.dim() == dims + 1 else input.size(0)
            size = (batch, input.size(-dims - 1), dims)
            _random_samples = rand(size, dtype=input.dtype, device_mesh=input.device_mesh)
        return plain(input, kernel_size, output_size, output_ratio, return_indices, _random_samples)

    return pool


def _refuse_torch_fsdp(plain, *args, **kwargs):
    raise TypeError(
        "meshtorch: fully_shard of torch.distributed.fsdp got a parameter that meshtorch distributes\n"
        "  do: use fully_shard of meshtorch.fsdp, which has the same signature"
    )


def install():
    _replace_for_distributed(FSDPParam, "__init__", _refuse_torch_fsdp)
    _replace_for_distributed(torch, "unravel_index", _with_numbers_of_the_program)
    for name in ("mean", "std", "var"):  # without a mask they count ones
        _replace_for_distributed(torch.masked, name, _with_numbers_of_the_program)
    for dims in (2, 3):
        for name in (f"fractional_max_pool{dims}d", f"fractional_max_pool{dims}d_with_indices"):
            _replace_for_distributed(torch.nn.functional, name, _with_equal_samples(dims))
