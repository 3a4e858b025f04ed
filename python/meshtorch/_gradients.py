"""Gradients that a program gives to backward: those of distributed tensors have to be distributed, or one number."""

import torch

from . import _C
from ._factories import ones

_plain_make_grads = torch.autograd._make_grads


def _gradient_for(output, gradient):
    is_distributed = isinstance(output, torch.Tensor) and _C.is_dtensor(output)
    if not is_distributed or not isinstance(gradient, torch.Tensor) or _C.is_dtensor(gradient):
        return gradient
    try:  # as operators do: a number is the same on every rank, and so is what implicit_replication says it of
        return gradient * ones((), dtype=gradient.dtype, device_mesh=output.device_mesh)
    except RuntimeError:
        raise ValueError(
            "meshtorch: a plain tensor was taken for a distributed one\n"
            f"  its shape: {list(gradient.shape)}\n  in: the gradient that backward, or torch.autograd.grad, was given\n"
            "  do: make it one with distribute_tensor or DTensor.from_local"
        ) from None


def _make_grads(outputs, grads, *args, **kwargs):
    return _plain_make_grads(outputs, [_gradient_for(*pair) for pair in zip(outputs, grads, strict=False)], *args, **kwargs)


def install():
    torch.autograd._make_grads = _make_grads
