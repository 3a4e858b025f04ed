"""Groups of parameters at the edges of torch.nn modules: what runs before and after their forward."""

from copy import copy
from dataclasses import fields, is_dataclass

import torch
from torch.utils import _pytree as pytree

from . import _C


def _fields_of(value):
    """The fields of a dataclass, which torch's trees take for leaves; None for anything else."""
    if not is_dataclass(value) or isinstance(value, type):
        return None
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _with_fields(value, changed):
    """A dataclass like it with other fields. Its __init__ is not run: it may compute, or take none of them."""
    other = copy(value)
    for name, each in changed.items():
        object.__setattr__(other, name, each)
    return other


def _tensors_in(leaves):
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif (inside := _fields_of(leaf)) is not None:
            yield from _tensors_in(pytree.tree_leaves(inside))


def _with_tensors(leaves, tensors):
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield next(tensors)
        elif (inside := _fields_of(leaf)) is not None:
            parts, spec = pytree.tree_flatten(inside)
            yield _with_fields(leaf, pytree.tree_unflatten(list(_with_tensors(parts, tensors)), spec))
        else:
            yield leaf


def _on_tensors(call, values):
    """The values with the tensors in them, also in dataclasses, replaced by what `call` makes of the list of them."""
    if isinstance(values, torch.Tensor):  # what most modules give
        return call([values])[0]
    leaves, spec = pytree.tree_flatten(values)
    tensors = iter(call(list(_tensors_in(leaves))))
    return pytree.tree_unflatten(list(_with_tensors(leaves, tensors)), spec)


class _Passes:
    """The modules that make up a group, and which of them are still to run in this pass."""

    def __init__(self, modules, parameters):
        self.modules = modules
        self.to_come = set()
        # Where the group's parameters were found, until the first pass: (module, name, parameter).
        mine = {id(p) for _, p in parameters}
        parts = {part: None for whole in modules for part in whole.modules()}
        self.parameters = [(part, name, p) for part in parts for name, p in part._parameters.items() if id(p) in mine]

    def begin(self, module):
        if module not in self.to_come:
            self.to_come = set(self.modules)

    def end(self, module):
        self.to_come.discard(module)
        return not self.to_come


def _refuse_shared_between_groups(modules):
    """A parameter is whole while the modules of its group run, so that one outside of them would read a shard."""
    inside = {}  # of each group: the modules that it is whole for
    for whole in modules:
        for part in whole.modules():
            if hasattr(part, "_meshtorch_group"):
                inside.setdefault(part._meshtorch_group, set()).update(part.modules())
    for whole in modules:
        for name, part in whole.named_modules():
            for parameter_name, p in part._parameters.items():
                group = None if p is None else _C._group_of(p)
                if group is not None and group in inside and part not in inside[group]:
                    raise ValueError(
                        f"meshtorch: a parameter is shared by modules of several groups: {name}.{parameter_name}\n"
                        "  do: give these modules to one call of fully_shard, as a list"
                    )


def _take_replaced_parameters(modules):
    """Parameters that modules hold now in the place of those that their groups were given. What several modules shared they share again,
    since load_state_dict(assign=True) gives each its own: the first that was replaced counts."""
    for part in (part for whole in modules for part in whole.modules() if hasattr(part, "_meshtorch_passes")):
        passes = part._meshtorch_passes
        replaced = {}  # by what was there: what is there now
        for owner, name, old in passes.parameters:
            new = owner._parameters.get(name)
            if new is not None and new is not old and id(old) not in replaced:
                replaced[id(old)] = new
                part._meshtorch_group.replace(old, new)
        for owner, name, old in passes.parameters:
            if owner._parameters.get(name) is not None and id(old) in replaced:
                owner._parameters[name] = replaced[id(old)]
        passes.parameters = []


def _begin(group, passes, inputs):
    """The first forward pass of a group that runs in no other module's."""
    _take_replaced_parameters(passes.modules)
    _refuse_shared_between_groups(passes.modules)
    group.become_root_of([p for m in passes.modules for p in m.parameters()], inputs)


def enter(module, args, kwargs):
    group, passes = module._meshtorch_group, module._meshtorch_passes

    def before_forward(tensors):
        if group.is_new:
            _begin(group, passes, tensors)
        passes.begin(module)
        return group.before_forward(tensors)

    return _on_tensors(before_forward, (args, kwargs))


def leave(module, outputs):
    group, is_last = module._meshtorch_group, module._meshtorch_passes.end(module)
    return _on_tensors(lambda tensors: group.after_forward(tensors, is_last), outputs)


def _show_shards_in_states(group, passes):
    """What a state dict gives, and takes, are shards, also between forward and backward, which gathers again."""

    def reshard(*_):
        group.reshard()

    for module in {owner: None for owner, _, _ in passes.parameters}:
        module.register_state_dict_pre_hook(reshard)
        module.register_load_state_dict_pre_hook(reshard)


def add_hooks(modules, group, parameters):
    passes = _Passes(modules, parameters)
    _show_shards_in_states(group, passes)
    for module in modules:
        module._meshtorch_group = group
        module._meshtorch_passes = passes
        module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
        module.register_forward_hook(lambda part, args, outputs: leave(part, outputs))


def has_forward(module):
    return type(module).forward is not torch.nn.Module.forward


def free_parameters(modules, ignored=()):
    """The parameters that are in no group yet, each once, by name."""
    seen = {id(p) for p in ignored or ()}
    free = []
    for module in modules:
        for name, p in module.named_parameters():
            if id(p) not in seen and _C._group_of(p) is None:
                free.append((name, p))
            seen.add(id(p))
    return free


def refuse_foreign(parameters, who):
    """DTensors of torch.distributed.tensor have a mesh and collectives of their own."""
    for name, p in parameters:
        if any(cls.__module__.startswith("torch.distributed.") for cls in type(p).__mro__):
            raise TypeError(
                f"meshtorch: {who} got a parameter that torch.distributed distributes: {name}, a {type(p).__name__}\n"
                "  do: distribute it by meshtorch, or shard the module by torch.distributed.fsdp"
            )
