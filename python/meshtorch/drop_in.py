"""Importing this puts meshtorch's modules in the place of torch.distributed.tensor and its kin, for a program whose imports stay as they are.

It comes before the program's own imports: `import meshtorch.drop_in`, or `python -m meshtorch run train.py`. A name that meshtorch does
not have is PyTorch's, as those of FSDP1; passed_on() lists which of them the program asked for.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings

import torch.distributed._composable

__all__ = ["passed_on", "replaced"]

# What takes the place of which module; one of PyTorch comes after the package that it lies in.
_MODULES = {
    "torch.distributed.tensor": "meshtorch",
    "torch.distributed.tensor._api": "meshtorch",
    "torch.distributed.tensor._dtensor_spec": "meshtorch._dtensor_spec",
    "torch.distributed.tensor._random": "meshtorch._random",
    "torch.distributed.tensor._redistribute": "meshtorch._redistribute",
    "torch.distributed.tensor._utils": "meshtorch._utils",
    "torch.distributed.tensor.debug": "meshtorch.debug",
    "torch.distributed.tensor.device_mesh": "meshtorch.device_mesh",
    "torch.distributed.tensor.experimental": "meshtorch.experimental",
    "torch.distributed.tensor.experimental._attention": "meshtorch.experimental._attention",
    "torch.distributed.tensor.experimental._context_parallel": "meshtorch.experimental._context_parallel",
    "torch.distributed.tensor.experimental._context_parallel._attention": "meshtorch.experimental._context_parallel._attention",
    "torch.distributed.tensor.parallel": "meshtorch.parallel",
    "torch.distributed.tensor.parallel.api": "meshtorch.parallel.api",
    "torch.distributed.tensor.parallel.input_reshard": "meshtorch.parallel.input_reshard",
    "torch.distributed.tensor.parallel.loss": "meshtorch.parallel.loss",
    "torch.distributed.tensor.parallel.style": "meshtorch.parallel.style",
    "torch.distributed.tensor.placement_types": "meshtorch.placement_types",
    "torch.distributed._tensor": "meshtorch",
    "torch.distributed._tensor.api": "meshtorch",
    "torch.distributed._tensor.placement_types": "meshtorch.placement_types",
    "torch.distributed._functional_collectives": "meshtorch.functional_collectives",
    "torch.distributed.device_mesh": "meshtorch.device_mesh",
    "torch.distributed.fsdp": "meshtorch.fsdp",
    "torch.distributed.fsdp._fully_shard": "meshtorch.fsdp",
    "torch.distributed.fsdp._fully_shard._fsdp_api": "meshtorch.fsdp",
    "torch.distributed.fsdp._fully_shard._fully_shard": "meshtorch.fsdp",
    "torch.distributed._composable.fsdp": "meshtorch.fsdp",
    "torch.distributed._composable.fsdp.fully_shard": "meshtorch.fsdp",
    "torch.distributed._composable.replicate": "meshtorch._replicate",
    "torch.distributed._composable.replicate_with_fsdp": "meshtorch._replicate",
}
# Names that packages have from these modules, and which stay themselves.
_REEXPORTED = {
    "torch.distributed": {name: "torch.distributed.device_mesh" for name in ("DeviceMesh", "init_device_mesh")},
    "torch.distributed._composable": {"replicate": "torch.distributed._composable.replicate"},
}
_passed_on = set()


def _is_of_torch(frame):
    """Whether this code is PyTorch's own, which goes on with PyTorch's classes; its tests are programs."""
    while "__name__" not in frame.f_globals and frame.f_back is not None:
        frame = frame.f_back  # what eval and exec run is of the module that calls them
    module = frame.f_globals.get("__name__", "")
    return module.startswith("torch.") and not module.startswith("torch.testing.")


class _Replacement(types.ModuleType):
    """A module of PyTorch's name whose names are meshtorch's, and PyTorch's where meshtorch has none, or where PyTorch itself asks."""

    def __init__(self, theirs, ours):
        super().__init__(theirs.__name__, ours.__doc__)
        for name in ("__file__", "__loader__", "__package__", "__path__", "__spec__", "__all__"):
            if hasattr(theirs, name):
                setattr(self, name, getattr(theirs, name))
        self.__dict__["_theirs"], self.__dict__["_ours"] = theirs, ours

    def __getattr__(self, name):
        if _is_of_torch(sys._getframe(1)):
            return getattr(self._theirs, name)
        found = self._ours.__dict__.get(name, self)
        if found is not self:
            return found
        value = getattr(self._theirs, name)
        if not name.startswith("__") and not isinstance(value, types.ModuleType):
            _passed_on.add(f"{self.__name__}.{name}")
        return value

    def __dir__(self):
        return sorted({*dir(self._theirs), *dir(self._ours)})


def replaced() -> dict[str, str]:
    """Returns {module of PyTorch: module of meshtorch that is there now}. See docs/python.md for an example."""
    return {name: module._ours.__name__ for name, module in sorted(sys.modules.items()) if isinstance(module, _Replacement)}


def passed_on() -> list[str]:
    """Returns the names that were asked of a replaced module and are PyTorch's own. See docs/python.md for an example."""
    return sorted(_passed_on)


def _find(name):
    try:
        return importlib.import_module(name)
    except ImportError:  # this PyTorch has none of that name
        return None


def _all_names(modules):
    """{each name that one of the modules has in sys.modules: its name here}; those of torch.distributed._tensor are second names."""
    names = {id(module): name for name, module in modules.items()}
    return {name: names[id(module)] for name, module in list(sys.modules.items()) if id(module) in names}


def _warn_of_early_imports(theirs):
    """Modules of the program that hold PyTorch's classes already go on with those."""
    taken = {id(value): value for value in (theirs.DTensor, theirs.distribute_tensor, theirs.init_device_mesh)}
    early = []
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("torch", "meshtorch", "torchgen") or not isinstance(module, types.ModuleType):
            continue
        if any(id(value) in taken for value in list(vars(module).values())):
            early.append(name)
    if early:
        warnings.warn(
            f"meshtorch: modules imported PyTorch's distributed tensors before meshtorch.drop_in: {', '.join(sorted(early))}\n"
            "  do: import meshtorch.drop_in first, or run the program by `python -m meshtorch run`",
            stacklevel=3,
        )


def _install():
    # All of them are imported first: what PyTorch's own modules hold of each other stays.
    theirs = {name: module for name in _MODULES if (module := _find(name)) is not None}
    ours = {name: importlib.import_module(_MODULES[name]) for name in theirs}
    _warn_of_early_imports(theirs["torch.distributed.tensor"])
    named = _all_names(theirs)
    made = {name: _Replacement(theirs[name], ours[name]) for name in theirs}
    for name, replaced_name in named.items():
        sys.modules[name] = made[replaced_name]
    for name, replaced_name in named.items():
        parent, _, last = name.rpartition(".")
        # A function may have the name of the module that it lies in.
        if getattr(theirs.get(parent, sys.modules[parent]), last, None) is theirs[replaced_name]:
            setattr(sys.modules[parent], last, sys.modules[name])
    for package, names in _REEXPORTED.items():
        for name, module in names.items():
            setattr(sys.modules[package], name, getattr(ours[module], name))


_install()
