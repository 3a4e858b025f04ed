"""parallelize_module, and plans in the JSON that C++ programs read and write."""

import warnings
from fnmatch import fnmatchcase
from pathlib import Path

from .. import _C
from . import style as styles


def _matches(module, parts):
    """The modules below `module` whose names match the parts of a pattern."""
    if not parts:
        return [module]
    found = []
    for name, child in module.named_children():
        if fnmatchcase(name, parts[0]):
            found += _matches(child, parts[1:])
    return found


def parallelize_module(module, device_mesh=None, parallelize_plan=None, *, src_data_rank=0):
    """Applies a style, or a plan {name pattern: style}, to the module. Returns the module.

    A pattern that matches nothing is a warning. Of a mesh of several axes the library's styles take the one named "tp"; a style of the
    program's own gets the mesh as it was given.
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


def plan_to_json(plan):
    """The plan as C++'s ParallelizePlan::to_json writes it. Only styles of the library can be written."""
    for pattern, style in plan.items():
        if not isinstance(style, styles._LibraryStyle):
            raise ValueError(
                f"meshtorch: the style of '{pattern}' is {type(style).__name__}, which no file can hold\n"
                "  do: use the library's styles, or add it in the program"
            )
    return _C.plan_to_json([(pattern, style._style) for pattern, style in plan.items()])


def plan_from_json(text):
    """The plan {name pattern: style} of a text that plan_to_json or C++ wrote."""
    return {pattern: getattr(styles, name)(**arguments) for pattern, name, arguments in _C.plan_from_json(text)}


def load_plan(path):
    """The plan of a file."""
    return plan_from_json(Path(path).read_text())
