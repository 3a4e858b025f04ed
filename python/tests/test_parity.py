"""docs/parity.md is complete and true: every public name of PyTorch is in it, and what it says is here, is."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
MODULES = {
    "torch.distributed.tensor": "meshtorch",
    "torch.distributed.tensor.parallel": "meshtorch.parallel",
    "torch.distributed.tensor.debug": "meshtorch.debug",
    "torch.distributed.tensor.experimental": "meshtorch.experimental",
    "torch.distributed.fsdp": "meshtorch.fsdp",
    "torch.distributed.device_mesh": "meshtorch.device_mesh",
    "torch.distributed._functional_collectives": "meshtorch.functional_collectives",
}


INSTALLED = tuple(int(part) for part in torch.__version__.split(".")[:2])


def rows(module):
    """{name: (status, the version of PyTorch that has it first)} of the module's table; (0, 0): the oldest that meshtorch works with."""
    section = PAGE.read_text().split(f"\n## {module}\n")[1].split("\n## ")[0]
    found = {}
    for name, status, notes in re.findall(r"^\| `([\w.]+)` \| (\w+) \|(.*)$", section, re.MULTILINE):
        since = re.search(r"since (\d+)\.(\d+)", notes)
        found[name] = status, tuple(map(int, since.groups())) if since else (0, 0)
    return found


def public_names(module):
    if hasattr(module, "__all__"):
        return set(module.__all__)
    return {
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and not name.endswith(("_backward", "_setup_context"))
    }


def find(module, name):
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_listed_truly(module):
    theirs, ours = importlib.import_module(module), importlib.import_module(MODULES[module])
    table = rows(module)
    assert public_names(theirs) <= set(table)
    for name, (status, since) in table.items():
        assert (find(theirs, name) is not None) == (since <= INSTALLED), f"PyTorch {INSTALLED} and {module}.{name}, since {since}"
        assert status in ("same", "different", "missing")
        is_here = find(ours, name) is not None or name in ("DTensor.device_mesh", "DTensor.placements")
        assert is_here == (status != "missing"), f"{name} is said to be {status}"


def arguments(function):
    return [(each.name, each.kind) for each in inspect.signature(function).parameters.values()]


def test_functions_and_methods_of_fsdp_take_pytorchs_arguments():
    theirs, ours = importlib.import_module("torch.distributed.fsdp"), importlib.import_module("meshtorch.fsdp")
    for name in ("fully_shard", "register_fsdp_forward_method", "share_comm_ctx"):
        assert arguments(getattr(ours, name)) == arguments(inspect.unwrap(getattr(theirs, name))), name
    for name, method in inspect.getmembers(theirs.FSDPModule, inspect.isfunction):
        if not name.startswith("_"):
            assert arguments(getattr(ours.FSDPModule, name)) == arguments(method), name


def test_every_operator_that_sends_more_than_pytorchs_has_a_reason():
    page = (PAGE.parent / "collective_counts.md").read_text()
    tables = [part.split("\n##")[0] for part in page.split("### Operators with a call that needs more here")[1:]]
    rows = [line for table in tables for line in table.splitlines() if line.startswith("| `")]
    assert len(tables) == 2 and rows
    assert not [row for row in rows if row.endswith("| not known |")]
