"""The Python program of docs/porting.md runs, on four processes, and by `python -m meshtorch run` with PyTorch's imports."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parent / "page_programs.py"


@pytest.mark.parametrize("start", [[], ["-m", "meshtorch", "run"]])
def test_the_program_of_the_page_runs(tmp_path, start):
    text = PROGRAM.read_text()
    if start:
        text = text.replace("from meshtorch import Shard, distribute_tensor, init_device_mesh", "from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh")
        assert "meshtorch import" not in text
    program = tmp_path / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", *start, str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("(Shard(dim=0), Replicate())") == 4, ran.stdout
    assert "1130." in ran.stdout
