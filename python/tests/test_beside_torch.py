"""What importing meshtorch leaves as it was: plain tensors, torch.fx, torch.compile; and scopes that are misused."""

import subprocess
import sys

import meshtorch
import pytest
import torch
from meshtorch import Shard, distribute_tensor, implicit_replication
from meshtorch.parallel import loss_parallel
from torch import nn


def test_plain_modules_are_traced_and_compiled():
    x = torch.ones(2, 4)
    linear = nn.Linear(4, 4)
    assert torch.equal(torch.fx.symbolic_trace(linear)(x), linear(x))
    assert torch.equal(torch.compile(linear, backend="eager", fullgraph=True)(x), linear(x))
    assert len(torch.overrides.get_overridable_functions()[torch.Tensor]) > 100


def test_the_names_of_distributed_tensors_are_free_on_plain_ones():
    x = torch.ones(2)
    x.placements = x._spec = 5
    assert x.placements == x._spec == 5
    del x.placements
    assert not hasattr(x, "placements") and not hasattr(nn.Parameter(x), "placements")
    with pytest.raises(AttributeError, match="placements"):
        del x.placements
    assert x.tolist() == [1, 1] and x.numpy().tolist() == [1, 1] and x.new_tensor([3]).tolist() == [3]


def test_the_names_of_distributed_tensors_cannot_be_set_on_them(fake_world):
    x = distribute_tensor(torch.ones(4), fake_world.mesh(), [Shard(0)])
    with pytest.raises(AttributeError, match="do: use redistribute"):
        x.placements = ()


def test_a_scope_that_was_not_entered_cannot_be_left(fake_world):
    mesh = fake_world.mesh()
    for scope in (mesh, implicit_replication(), loss_parallel()):
        with pytest.raises(RuntimeError, match="do: open it by `with`"):
            scope.__exit__(None, None, None)
    with mesh:
        with pytest.raises(RuntimeError, match="not the one entered last"):
            meshtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("x",)).__exit__(None, None, None)


def test_operators_import_nothing():
    program = """
import sys, torch, meshtorch
mesh = meshtorch.init_device_mesh("cpu", (1,))
x = meshtorch.distribute_tensor(torch.ones(4, 4), mesh, [meshtorch.Shard(0)])
before = set(sys.modules)
y = x.requires_grad_()
(torch.nn.functional.layer_norm(y @ y + y, (4,)).relu().sum(0) / 3).prod().backward()
print(sorted(set(sys.modules) - before))
"""
    environment = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
