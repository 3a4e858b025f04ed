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


def _cut(values, requires_grad=False, device_mesh=None, placements=None, layout=torch.strided):
    if layout != torch.strided:
        raise NotImplementedError(f"meshtorch: a distributed tensor of layout {layout}\n  do: use torch.strided")
    mesh = _C.mesh_or_current(device_mesh)
    return _C.distribute_tensor(values, mesh, placements, src_data_rank=None).requires_grad_(requires_grad)


def _number(value):
    return value.item() if isinstance(value, torch.Tensor) else value


def linspace(start, end, steps, *, dtype=None, **options):
    """`steps` values from start to end. Each rank makes all of them and keeps its own."""
    return _cut(torch.linspace(_number(start), _number(end), steps, dtype=dtype), **options)


def logspace(start, end, steps, base=10.0, *, dtype=None, **options):
    """`steps` values from base ** start to base ** end."""
    return _cut(torch.logspace(_number(start), _number(end), steps, base=base, dtype=dtype), **options)
