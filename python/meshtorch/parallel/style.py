"""How one torch.nn.Module is made parallel: the library decides layouts and converts tensors, torch runs the hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Union

import torch
from torch import nn

from .. import _C
from .._modules import distribute_module

# Of one tensor, or of each; None leaves one as it is.
Layouts = Union[_C.Placement, Sequence[Union[_C.Placement, None]]]

__all__ = [
    "ColwiseParallel",
    "NoParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
]


class ParallelStyle(ABC):
    """A style of your own derives from this. Its _apply gets the mesh that parallelize_module was given.

    >>> from meshtorch.parallel import ParallelStyle, parallelize_module
    >>> class Replicated(ParallelStyle):
    ...     def _apply(self, module, device_mesh):
    ...         return meshtorch.distribute_module(module, device_mesh)
    >>> parallelize_module(torch.nn.Linear(2, 3), mesh, Replicated()).weight.placements
    (Replicate(),)
    """

    src_data_rank: int | None = 0

    @abstractmethod
    def _apply(self, module: nn.Module, device_mesh: _C.DeviceMesh) -> nn.Module: ...


class _LibraryStyle(ParallelStyle):
    """A style of the library: `_style` is its C++ object, whose options are attributes here too."""

    def __init__(self, style):
        self._style = style
        for name, value in style.arguments().items():
            setattr(self, name, value)

    def __repr__(self):
        given = ", ".join(f"{name}={value!r}" for name, value in self._style.arguments().items() if value is not None)
        return f"{type(self).__name__}({given})"


def _partition_as(parameters, src_data_rank):
    parameters = parameters or {}

    def partition(_, module, mesh):
        for name, parameter in module.named_parameters(recurse=False):
            if not _C.is_dtensor(parameter):
                placement = parameters.get(name, _C.Replicate())
                data = _C.distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=src_data_rank)
                _C.replace_data(parameter, data)

    return partition


def _apply_styled(styled, module, mesh, src_data_rank):
    """Parameters as the style says, and its conversions of the first input and the first output as hooks."""

    def enter(part, inputs, on):
        if not inputs or not isinstance(inputs[0], torch.Tensor):
            raise ValueError(f"meshtorch: expecting input of {part} to be a torch.Tensor or DTensor")
        return (styled.enter(inputs[0], on), *inputs[1:])

    def leave(_, outputs, on):
        if isinstance(outputs, tuple):
            return (styled.leave(outputs[0], on), *outputs[1:])
        return styled.leave(outputs, on)

    return distribute_module(module, mesh, _partition_as(styled.parameters, src_data_rank), enter, leave)


def _splittable(module, style):
    """What the library has to know of a module that it splits."""
    if isinstance(module, nn.Linear):
        return {"kind": "linear", "inputs": module.in_features, "space": 0, "groups": 1}
    if isinstance(module, nn.Embedding):
        return {"kind": "embedding", "inputs": 0, "space": 0, "groups": 1}
    for space, convolution in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), start=1):
        if isinstance(module, convolution):
            return {"kind": "convolution", "inputs": module.in_channels, "space": space, "groups": module.groups}
    raise NotImplementedError(
        f"meshtorch: {style} currently only support nn.Linear and nn.Embedding! (and nn.Conv1d to nn.Conv3d)\n"
        f"  module: {type(module).__name__}\n  do: apply it to the layers inside"
    )


class _SplittingStyle(_LibraryStyle):
    """A style that splits parameters: `_library_style` makes its C++ object."""

    def __init__(
        self,
        *,
        input_layouts: _C.Placement | None = None,
        output_layouts: _C.Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(self._library_style(input_layouts, output_layouts, use_local_output))

    def _apply(self, module, device_mesh):
        device_mesh = _C.one_axis_of(device_mesh)
        styled = self._style.styled(**_splittable(module, self._style.name))
        return _apply_styled(styled, module, device_mesh, self.src_data_rank)


class ColwiseParallel(_SplittingStyle):
    """Splits the outputs of a Linear, Embedding or convolution.

    >>> from meshtorch.parallel import ColwiseParallel, parallelize_module
    >>> linear = parallelize_module(torch.nn.Linear(4, 6), mesh, ColwiseParallel())
    >>> linear(torch.ones(2, 4)).shape  # this rank's part of the outputs
    torch.Size([2, 3])
    """

    _library_style = _C.ColwiseParallel


class RowwiseParallel(_SplittingStyle):
    """Splits the inputs of a Linear, Embedding or convolution.

    >>> from meshtorch.parallel import RowwiseParallel, parallelize_module
    >>> linear = parallelize_module(torch.nn.Linear(4, 6), mesh, RowwiseParallel())
    >>> linear(torch.ones(2, 2)).shape  # takes this rank's part of the inputs
    torch.Size([2, 6])
    """

    _library_style = _C.RowwiseParallel


class SequenceParallel(_LibraryStyle):
    """Runs a module whose parameters are replicated on inputs that are split along the sequence.

    >>> from meshtorch.parallel import SequenceParallel, parallelize_module
    >>> norm = parallelize_module(torch.nn.LayerNorm(4), mesh, SequenceParallel())
    >>> norm(torch.ones(1, 3, 4)).placements  # each rank gives its part of the sequence
    (Shard(dim=1),)
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        super().__init__(_C.SequenceParallel(sequence_dim, use_local_output))

    def _apply(self, module, device_mesh):
        return _apply_styled(self._style.styled(), module, _C.one_axis_of(device_mesh), self.src_data_rank)


class NoParallel(_LibraryStyle):
    """Runs a module whole on every rank, between modules that are parallel.

    >>> from meshtorch.parallel import NoParallel, parallelize_module
    >>> parallelize_module(torch.nn.Linear(4, 6), mesh, NoParallel()).weight.placements
    (Replicate(),)
    """

    def __init__(
        self,
        *,
        input_layout: _C.Placement | None = None,
        output_layout: _C.Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__(_C.NoParallel(input_layout, output_layout, use_local_output))

    def _apply(self, module, device_mesh):
        return _apply_styled(self._style.styled(), module, _C.one_axis_of(device_mesh), self.src_data_rank)


def _listed(layouts):
    """One placement stands for a list of one."""
    return [layouts] if isinstance(layouts, _C.Placement) else layouts


def _tensors_of(values):
    return [value if isinstance(value, torch.Tensor) else None for value in values]


def _with_tensors(values, tensors):
    return [value if tensor is None else tensor for value, tensor in zip(values, tensors)]


class PrepareModuleInput(_LibraryStyle):
    """Makes inputs distributed as input_layouts say, and brings them to desired_input_layouts.

    >>> from meshtorch.parallel import PrepareModuleInput, parallelize_module
    >>> gather = PrepareModuleInput(input_layouts=meshtorch.Shard(0), desired_input_layouts=meshtorch.Replicate())
    >>> part = parallelize_module(torch.nn.Identity(), mesh, gather)
    >>> part(torch.ones(1, 4)).placements
    (Replicate(),)
    """

    def __init__(
        self,
        *,
        input_layouts: Layouts | None = None,
        desired_input_layouts: Layouts | None = None,
        input_kwarg_layouts: Mapping[str, _C.Placement] | None = None,
        desired_input_kwarg_layouts: Mapping[str, _C.Placement] | None = None,
        use_local_output: bool = False,
    ) -> None:
        super().__init__(
            _C.PrepareModuleInput(
                _listed(input_layouts),
                _listed(desired_input_layouts),
                input_kwarg_layouts or {},
                desired_input_kwarg_layouts or {},
                use_local_output,
            )
        )
        self._names = set(input_kwarg_layouts or {})

    def _apply(self, module, device_mesh):
        device_mesh = _C.one_axis_of(device_mesh)

        def prepare(part, args, kwargs):
            named = [name for name in kwargs if name in self._names]
            values = [*args, *(kwargs[name] for name in named)]
            tensors = self._style.convert(
                type(part).__name__, _tensors_of(values), [""] * len(args) + named, device_mesh
            )
            prepared = _with_tensors(values, tensors)
            return tuple(prepared[: len(args)]), {**kwargs, **dict(zip(named, prepared[len(args) :]))}

        module.register_forward_pre_hook(prepare, with_kwargs=True)
        return module


class PrepareModuleOutput(_LibraryStyle):
    """Makes outputs distributed as output_layouts say, and brings them to desired_output_layouts.

    >>> from meshtorch.parallel import PrepareModuleOutput, parallelize_module
    >>> gather = PrepareModuleOutput(output_layouts=meshtorch.Shard(0), desired_output_layouts=meshtorch.Replicate())
    >>> part = parallelize_module(torch.nn.Identity(), mesh, gather)
    >>> part(torch.ones(1, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, *, output_layouts: Layouts, desired_output_layouts: Layouts, use_local_output: bool = True) -> None:
        super().__init__(
            _C.PrepareModuleOutput(_listed(output_layouts), _listed(desired_output_layouts), use_local_output)
        )

    def _apply(self, module, device_mesh):
        device_mesh = _C.one_axis_of(device_mesh)

        def prepare(part, _, outputs):
            values = outputs if isinstance(outputs, tuple) else (outputs,)
            tensors = self._style.convert(type(part).__name__, _tensors_of(values), device_mesh)
            prepared = tuple(_with_tensors(values, tensors))
            return prepared if isinstance(outputs, tuple) else prepared[0]

        module.register_forward_hook(prepare)
        return module


class PrepareModuleInputOutput(_LibraryStyle):
    """PrepareModuleInput and PrepareModuleOutput in one.

    >>> from meshtorch.parallel import PrepareModuleInputOutput, parallelize_module
    >>> both = PrepareModuleInputOutput(
    ...     input_layouts=meshtorch.Shard(0),
    ...     desired_input_layouts=meshtorch.Replicate(),
    ...     output_layouts=meshtorch.Replicate(),
    ...     desired_output_layouts=meshtorch.Shard(0),
    ... )
    >>> parallelize_module(torch.nn.Identity(), mesh, both)(torch.ones(1, 4)).shape
    torch.Size([1, 4])
    """

    def __init__(
        self,
        *,
        input_layouts: Layouts | None = None,
        desired_input_layouts: Layouts | None = None,
        input_kwarg_layouts: Mapping[str, _C.Placement] | None = None,
        desired_input_kwarg_layouts: Mapping[str, _C.Placement] | None = None,
        use_local_input: bool = False,
        output_layouts: Layouts,
        desired_output_layouts: Layouts,
        use_local_output: bool = True,
    ) -> None:
        self._input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self._output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )
        super().__init__(_C.PrepareModuleInputOutput(self._input._style, self._output._style))

    def _apply(self, module, device_mesh):
        return self._output._apply(self._input._apply(module, device_mesh), device_mesh)
