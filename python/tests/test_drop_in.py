"""Programs whose imports stay as they are, on meshtorch: python -m meshtorch run, and import meshtorch.drop_in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import meshtorch

from test_portable import assert_alike

HERE = Path(__file__).parent
PROGRAM = HERE / "unchanged_program.py"
_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(meshtorch.__file__).parents[1].absolute())}


def run_ranks(folder, command):
    """What rank 0 of four wrote."""
    folder.mkdir()
    result = folder / "result.json"
    path = os.pathsep.join([str(HERE), _ENVIRONMENT["PYTHONPATH"]])
    running = [
        subprocess.Popen(
            [sys.executable, *command, str(folder), str(result)],
            env={**os.environ, "RANK": str(rank), "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    errors = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, "\n".join(errors)
    return json.loads(result.read_text()), errors[0]


def test_a_program_runs_as_it_is(tmp_path):
    theirs, _ = run_ranks(tmp_path / "theirs", [str(PROGRAM)])
    ours, shown = run_ranks(tmp_path / "ours", ["-m", "meshtorch", "run", "--show-replaced", str(PROGRAM)])
    assert theirs["made_by"] == "torch.distributed.device_mesh" and ours["made_by"].startswith("meshtorch")
    assert_alike(ours["computed"], theirs["computed"], "rank 0")
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines() if line.startswith("torch.distributed."))
    assert lines["torch.distributed.tensor.parallel"] == "meshtorch.parallel"
    passed_on = shown.split("PyTorch's own, since meshtorch has none: ")[1].splitlines()[0]
    assert "torch.distributed.fsdp.FullyShardedDataParallel" in passed_on.split(", ") and "DTensor" not in passed_on


def outputs_of(*command, code=None):
    arguments = [*command] if code is None else ["-c", code]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=True, env=_ENVIRONMENT)
    return done.stdout, done.stderr


def test_what_is_replaced_is_printed():
    _, shown = outputs_of("-m", "meshtorch", "replaced")
    assert "torch.distributed.device_mesh" in shown and "meshtorch.functional_collectives" in shown


def test_a_module_runs_with_its_arguments(tmp_path):
    (tmp_path / "program.py").write_text(
        "import sys, torch.distributed.tensor as dt\nprint(__name__, sys.argv[1:], dt.Shard.__module__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "meshtorch", "run", "-m", "program", "--rate", "3"],
        cwd=tmp_path,
        env=_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "__main__ ['--rate', '3'] meshtorch._C\n"


def test_modules_that_were_imported_before_are_named(tmp_path):
    code = (
        "import sys, types\nfrom torch.distributed.tensor import DTensor\n"
        "early = types.ModuleType('early'); early.DTensor = DTensor; sys.modules['early'] = early\n"
        "import meshtorch.drop_in"
    )
    _, warned = outputs_of(code=code)
    assert "imported PyTorch's distributed tensors before meshtorch.drop_in: " in warned and "early\n" in warned


def test_other_names_of_a_module_are_replaced_too():
    code = (
        "import meshtorch.drop_in, meshtorch, sys\n"
        "from torch.distributed._tensor.device_mesh import init_device_mesh\n"
        "from torch.distributed._tensor.api import distribute_tensor\n"
        "from torch.distributed._tensor.experimental import local_map\n"
        "import torch.distributed._tensor.device_mesh as by_attribute\n"
        "print(init_device_mesh.__module__, by_attribute.init_device_mesh is init_device_mesh, local_map.__module__)\n"
        "print(distribute_tensor is meshtorch.distribute_tensor, 'torch.distributed._tensor.device_mesh' in meshtorch.drop_in.replaced())"
    )
    assert outputs_of(code=code)[0] == "meshtorch.device_mesh True meshtorch.experimental\nTrue True\n"


def test_code_that_pytorch_evaluates_gets_pytorchs_names():
    code = (
        "import meshtorch.drop_in, types, torch.distributed.tensor as dt\n"
        "theirs = types.ModuleType('torch.some_module')\n"
        "exec('def ask(dt): return eval(\\'dt.Shard\\', {\\'dt\\': dt})', theirs.__dict__)\n"
        "print(theirs.ask(dt).__module__, eval('dt.Shard', {'dt': dt}).__module__)"
    )
    assert outputs_of(code=code)[0] == "torch.distributed.tensor.placement_types meshtorch._C\n"


def test_names_that_packages_export_again_are_replaced():
    code = (
        "import meshtorch, meshtorch.drop_in\n"
        "from torch.distributed._composable import replicate\n"
        "from torch.distributed._composable.replicate import replicate as of_module\n"
        "from torch.distributed.fsdp._fully_shard._fully_shard import FSDPModule\n"
        "from torch.distributed.fsdp._fully_shard._fsdp_api import MixedPrecisionPolicy\n"
        "import torch.distributed as dist\n"
        "print(replicate is of_module, replicate.__module__, FSDPModule.__module__, MixedPrecisionPolicy.__module__, dist.DeviceMesh.__module__)"
    )
    assert outputs_of(code=code)[0] == "True meshtorch._replicate meshtorch.fsdp meshtorch.fsdp meshtorch._C\n"


def test_importing_meshtorch_alone_replaces_nothing():
    code = (
        "import meshtorch, torch.distributed.tensor as dt, torch.distributed.fsdp as fsdp\n"
        "assert dt.DTensor is not meshtorch.DTensor and dt.__class__.__module__ == 'builtins'\n"
        "print(fsdp.FSDPModule.__module__)"
    )
    assert outputs_of(code=code)[0] == "torch.distributed.fsdp\n"
