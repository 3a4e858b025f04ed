"""What local_map(spmd_types=True) asks the package spmd_types to check: how each value of the function differs between ranks."""

import importlib.util
from contextlib import ExitStack, contextmanager

import torch

from .._C import Partial, Replicate, Shard


def _package():
    if importlib.util.find_spec("spmd_types") is None:
        raise RuntimeError(
            "meshtorch: local_map(spmd_types=True) requires the spmd_types package to be installed\n"
            "  do: install it, or leave spmd_types out"
        )
    import spmd_types

    return spmd_types


def _axes(spmd, mesh):
    return [spmd.MeshAxis.of(mesh.get_group(axis)) for axis in range(mesh.ndim)]


def _type_of(spmd, placement, gradient):
    """The type of a value with this placement and this placement of its gradient, None where that is not said."""
    if isinstance(placement, Shard):
        found, fit = spmd.V, Shard
    elif isinstance(placement, Partial):
        found, fit = spmd.P, Replicate
    elif isinstance(placement, Replicate):
        found, fit = (spmd.I, Replicate) if isinstance(gradient, Replicate) else (spmd.R, Partial)
    else:
        raise ValueError(f"meshtorch: local_map(spmd_types=True) does not support the placement {placement}")
    if gradient is not None and not isinstance(gradient, fit):
        raise ValueError(
            f"meshtorch: local_map(spmd_types=True) cannot represent the gradient {gradient} of a value that is {placement}\n"
            f"  it can: {'Replicate() or Partial()' if isinstance(placement, Replicate) else fit.__name__}\n"
            "  do: change in_grad_placements, or make the function larger"
        )
    return found


def _gradient_of(placement, gradient):
    """Where the gradient lies that a value of this placement gets: of a replicated one, a sum of what each rank has."""
    if gradient is not None:
        return gradient
    if isinstance(placement, Replicate):
        return Partial()
    return Replicate() if isinstance(placement, Partial) else placement


class _OnOneRank(torch.autograd.Function):
    """The value; its gradient, which all ranks have, as a sum to which one of them adds."""

    @staticmethod
    def forward(ctx, value, adds):
        ctx.adds = adds
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        return gradient if ctx.adds else torch.zeros_like(gradient), None


class Checked:
    """One mapped function under the check. A mesh of meshtorch whose groups are those of torch.distributed is needed."""

    def __init__(self, mesh):
        self._spmd, self._mesh = _package(), mesh
        self._of_axis = _axes(self._spmd, mesh)

    def gradients(self, in_placements, in_grad_placements):
        """in_grad_placements with what is left out: those of the types."""
        given = in_grad_placements or [None] * len(in_placements)
        return tuple(
            None if placements is None else [_gradient_of(*pair) for pair in zip(placements, of_gradient or [None] * len(placements))]
            for placements, of_gradient in zip(in_placements, given)
        )

    def mark(self, value, placements, gradients):
        """The argument, with its type along each axis, as an object of its own: others may hold the value."""
        pairs = zip(placements, gradients or [None] * len(placements))
        types = [_type_of(self._spmd, *pair) for pair in pairs]
        return self._spmd.assert_type(value.view_as(value), dict(zip(self._of_axis, types)))

    @contextmanager
    def running(self):
        from spmd_types._checker import typecheck

        with ExitStack() as scopes:
            scopes.enter_context(self._spmd.set_current_mesh([self._mesh.get_group(axis) for axis in range(self._mesh.ndim)]))
            scopes.enter_context(typecheck(strict_mode="strict"))
            yield

    def checked_output(self, value, placements):
        """The value, whose types fit the placements. Where each rank went on with a copy, the gradient is a sum over the ranks."""
        found = self._spmd.get_local_type(value)
        fit = {self._spmd.V: (Shard, Partial), self._spmd.P: (Partial,), self._spmd.R: (Replicate,), self._spmd.I: (Replicate,)}
        for axis, placement in enumerate(placements):
            kind = found.get(self._of_axis[axis]) if found else None
            if self._mesh.size(axis) > 1 and (kind is None or not isinstance(placement, fit[kind])):
                raise ValueError(
                    f"meshtorch: an output of local_map is {placement} on axis {axis} of the mesh, and {kind.name if kind else 'of no type'} for spmd_types\n"
                    "  do: change out_placements, or the function"
                )
            if kind is self._spmd.R:
                value = _OnOneRank.apply(value, self._mesh.get_local_rank(axis) == 0)
        return value
