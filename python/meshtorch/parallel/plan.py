"""parallelize_module, and plans in the JSON that C++ programs read and write."""

from __future__ import annotations

import warnings
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import TypeVar

from torch import nn

from .. import _C
from . import style as styles

M = TypeVar("M", bound=nn.Module)


def _matches(module, parts):
    """The modules below `module` whose names match the parts of a pattern."""
    if not parts:
        return [module]
    found = []
    for name, child in module.named_children():
        if fnmatchcase(name, parts[0]):
            found += _matches(child, parts[1:])
    return found


def parallelize_module(
    module: M,
    device_mesh: _C.DeviceMesh | None = None,
    parallelize_plan: styles.ParallelStyle | dict[str, styles.ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> M:
    """Applies a style, or a plan {name pattern: style}, to the module. Returns the module.

    A pattern that matches nothing is a warning. Of a mesh of several axes the library's styles take the one named "tp"; a style of the
    program's own gets the mesh as it was given.

    >>> from meshtorch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    >>> mlp = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    >>> _ = parallelize_module(mlp, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    >>> mlp[0].weight.placements, mlp[2].weight.placements
    ((Shard(dim=0),), (Shard(dim=1),))
    >>> mlp(torch.ones(3, 4)).shape
    torch.Size([3, 4])
    """
    if parallelize_plan is None:
        warnings.warn("meshtorch: parallelize_module without a parallelize_plan does nothing", stacklevel=2)
        return module
    if isinstance(parallelize_plan, styles.ParallelStyle):
        parallelize_plan = {"": parallelize_plan}
    if not isinstance(parallelize_plan, dict):
        raise TypeError(
            f"meshtorch: parallelize_plan is {type(parallelize_plan).__name__}\n"
            "  do: give a ParallelStyle, or a dict of module names and styles"
        )
    for pattern, style in parallelize_plan.items():
        if not isinstance(style, styles.ParallelStyle):
            raise TypeError(
                f"meshtorch: the style of '{pattern}' is {style!r}, of type {type(style).__name__}\n"
                "  in: parallelize_module\n  do: give a ParallelStyle, as ColwiseParallel()"
            )
    mesh = _C.mesh_or_current(device_mesh)
    for pattern, style in parallelize_plan.items():
        found = _matches(module, pattern.split(".") if pattern else [])
        if not found:
            warnings.warn(
                f"meshtorch: the plan's pattern '{pattern}' matches no module of {type(module).__name__} and is skipped",
                stacklevel=2,
            )
        for part in found:
            style.src_data_rank = src_data_rank
            style._apply(part, mesh)
    return module


def plan_to_json(plan: dict[str, styles.ParallelStyle]) -> str:
    """Returns the plan as C++'s ParallelizePlan::to_json writes it. Only styles of the library can be written.

    >>> from meshtorch.parallel import ColwiseParallel, plan_from_json, plan_to_json
    >>> plan_from_json(plan_to_json({"up": ColwiseParallel()}))
    {'up': ColwiseParallel(use_local_output=True)}
    """
    for pattern, style in plan.items():
        if not isinstance(style, styles._LibraryStyle):
            raise ValueError(
                f"meshtorch: the style of '{pattern}' is {type(style).__name__}, which no file can hold\n"
                "  do: use the library's styles, or add it in the program"
            )
    return _C.plan_to_json([(pattern, style._style) for pattern, style in plan.items()])


def plan_from_json(text: str) -> dict[str, styles.ParallelStyle]:
    """Returns the plan {name pattern: style} of a text that plan_to_json or C++ wrote.

    >>> from meshtorch.parallel import RowwiseParallel, plan_from_json, plan_to_json
    >>> plan_from_json(plan_to_json({"down": RowwiseParallel()}))
    {'down': RowwiseParallel(use_local_output=True)}
    """
    return {pattern: getattr(styles, name)(**arguments) for pattern, name, arguments in _C.plan_from_json(text)}


def load_plan(path: str | PathLike[str]) -> dict[str, styles.ParallelStyle]:
    """Returns the plan of a file that plan_to_json or C++ wrote.

    >>> import pathlib, tempfile
    >>> from meshtorch.parallel import ColwiseParallel, load_plan, plan_to_json
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "plan.json"
    >>> _ = file.write_text(plan_to_json({"up": ColwiseParallel()}))
    >>> list(load_plan(file))
    ['up']
    """
    return plan_from_json(Path(path).read_text())
