"""Functions of torch that are written in Python and make plain tensors inside: told to make distributed ones, or replicated by a scope."""

import copy
import functools
import sys

import torch
import torch.testing._comparison
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.nn.utils import parametrizations, rnn

from . import _C
from ._factories import rand
from ._made_inside import MadeInside, mesh_of


def _tensors(args, kwargs):
    """Those that a function is given, also in lists."""
    values = (*args, *kwargs.values())
    listed = [value for group in values if isinstance(group, (list, tuple)) for value in group]
    return [value for value in (*values, *listed) if isinstance(value, torch.Tensor)]


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


def _with_tensors_made_distributed(plain, *args, **kwargs):
    """What it makes inside may be random: the same numbers on every rank."""
    with MadeInside(mesh_of(_tensors(args, kwargs))):
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


class _WouldBeNested(Exception):
    """A TransformerEncoder was about to leave padding out of its input, which distributed tensors cannot."""


def _tell_that_it_would_be_nested(plain, *args, **kwargs):
    raise _WouldBeNested


def _encode_with_padding(plain, encoder, src, mask=None, src_key_padding_mask=None, is_causal=None):
    """Where torch leaves padding out and fills it with zeros at the end, padding is computed, and then filled."""
    try:
        return plain(encoder, src, mask, src_key_padding_mask, is_causal)
    except _WouldBeNested:
        layers = copy.copy(encoder)
        layers._modules = {**encoder._modules, "norm": None}
        layers.use_nested_tensor = False
        output = plain(layers, src, mask, src_key_padding_mask, is_causal)
        output = output.masked_fill((src_key_padding_mask != 0).unsqueeze(-1), 0.0)
        return output if encoder.norm is None else encoder.norm(output)


def _pack_with_lengths(plain, input, lengths, *args, **kwargs):
    """Lengths that are numbers of the program become a tensor that lies as the input's mesh does."""
    if not isinstance(lengths, torch.Tensor):
        lengths = _C.from_local(torch.as_tensor(lengths, dtype=torch.int64), input.device_mesh)
    return plain(input, lengths, *args, **kwargs)


def _pack_list(plain, sequences, enforce_sorted=True):
    lengths = [len(sequence) for sequence in sequences]
    return rnn.pack_padded_sequence(rnn.pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


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
    # What unravel_index calls: programs may hold that by another name already.
    _replace_for_distributed(torch.functional, "_unravel_index", _with_numbers_of_the_program)
    _replace_for_distributed(torch.nn.functional, "multi_head_attention_forward", _with_numbers_of_the_program)
    _replace_for_distributed(torch.nn.modules.transformer, "_detect_is_causal_mask", _with_numbers_of_the_program)
    _replace_for_distributed(torch, "_nested_tensor_from_mask", _tell_that_it_would_be_nested)
    _replace_for_distributed(torch.nn.TransformerEncoder, "forward", _encode_with_padding)
    _replace_for_distributed(rnn, "pack_padded_sequence", _pack_with_lengths)
    _replace_for_distributed(rnn, "pack_sequence", _pack_list)
    for name in ("invert_permutation", "unpad_sequence"):
        _replace_for_distributed(rnn, name, _with_numbers_of_the_program)
    for name in ("forward", "right_inverse"):
        _replace_for_distributed(parametrizations._Orthogonal, name, _with_tensors_made_distributed)
    for name in ("mean", "std", "var"):  # without a mask they count ones
        _replace_for_distributed(torch.masked, name, _with_numbers_of_the_program)
    for dims in (2, 3):
        for name in (f"fractional_max_pool{dims}d", f"fractional_max_pool{dims}d_with_indices"):
            _replace_for_distributed(torch.nn.functional, name, _with_equal_samples(dims))
