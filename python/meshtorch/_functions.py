"""Functions of torch that are written in Python and make plain tensors inside: told to make distributed ones, or replicated by a scope."""

import functools
import sys

import torch
import torch.testing._comparison
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


def _compared(plain, actual, expected):
    """What torch.testing compares: two distributed tensors by their values, if they lie alike."""
    ours = [isinstance(value, torch.Tensor) and _C.is_dtensor(value) for value in (actual, expected)]
    if not any(ours):
        return plain(actual, expected)
    if not all(ours):
        raise TypeError(
            "meshtorch: Comparing a DTensor to a non-DTensor is ambiguous\n"
            f"  they are: {type(actual).__name__}{' (distributed)' * ours[0]}, "
            f"{type(expected).__name__}{' (distributed)' * ours[1]}\n"
            "  do: compare full_tensor(), the whole value, or to_local(), this rank's shard"
        )
    for name, words in (("placements", "placements"), ("device_mesh", "device meshes")):
        one, other = getattr(actual, name), getattr(expected, name)
        if one != other:
            raise AssertionError(
                f"meshtorch: DTensor {words} do not match: {one} != {other}\n"
                "  do: compare full_tensor() of both, if they may lie differently"
            )
    return actual, expected


def _install_comparison():
    """torch's test cases import the function under its own name; they may be here before meshtorch."""
    name = "_unwrap_dtensor_for_comparison"
    compared = functools.partial(_compared, getattr(torch.testing._comparison, name))
    for module in ("torch.testing._comparison", "torch.testing._internal.common_utils"):
        if module in sys.modules:
            setattr(sys.modules[module], name, compared)


def install():
    _install_comparison()
    _replace_for_distributed(FSDPParam, "__init__", _refuse_torch_fsdp)
    _replace_for_distributed(torch, "unravel_index", _with_numbers_of_the_program)
    _replace_for_distributed(torch.nn.functional, "multi_head_attention_forward", _with_numbers_of_the_program)
    _replace_for_distributed(torch.nn.modules.transformer, "_detect_is_causal_mask", _with_numbers_of_the_program)
    for name in ("mean", "std", "var"):  # without a mask they count ones
        _replace_for_distributed(torch.masked, name, _with_numbers_of_the_program)
    for dims in (2, 3):
        for name in (f"fractional_max_pool{dims}d", f"fractional_max_pool{dims}d_with_indices"):
            _replace_for_distributed(torch.nn.functional, name, _with_equal_samples(dims))
