"""New distributed tensors: sizes in the ways that torch takes them."""

import torch

from . import _C


def _made(make, size, *values, layout=torch.strided, **options):
    if layout != torch.strided:
        raise NotImplementedError(f"meshtorch: a distributed tensor of layout {layout}\n  do: use torch.strided")
    if len(size) == 1 and not isinstance(size[0], int):
        size = size[0]
    options["dtype"] = options.get("dtype") or torch.get_default_dtype()
    return make(list(size), *values, **options)


def empty(*size, **options):
    """Not initialised. Options of all factories: dtype, requires_grad, device_mesh, placements."""
    return _made(_C.empty, size, **options)


def zeros(*size, **options):
    return _made(_C.zeros, size, **options)


def ones(*size, **options):
    return _made(_C.ones, size, **options)


def full(size, fill_value, **options):
    return _made(_C.full, (size,), fill_value, **options)


def rand(*size, **options):
    """Uniform in [0, 1), the same global tensor for any mesh and placements."""
    return _made(_C.rand, size, **options)


def randn(*size, **options):
    """Normal with mean 0 and variance 1, the same global tensor for any mesh and placements."""
    return _made(_C.randn, size, **options)
