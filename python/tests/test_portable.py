"""A program for torch.distributed.tensor runs on meshtorch with only its imports changed, with equal results."""

import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("portable_script.py")
MODULES = {
    "torch.distributed._functional_collectives": "meshtorch.functional_collectives",
    "torch.distributed.device_mesh": "meshtorch.device_mesh",
    "torch.distributed.tensor": "meshtorch",
}


def with_imports_changed(text):
    for theirs, ours in MODULES.items():
        text = re.sub(rf"^(from|import) {re.escape(theirs)}\b", rf"\1 {ours}", text, flags=re.MULTILINE)
    return text


def run_script(text):
    names = {}
    exec(compile(text, SCRIPT.name, "exec"), names)
    return names["main"]()


def assert_alike(ours, theirs, where):
    """Equal, numbers to 12 digits in what was computed in double precision and 6 else."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            assert_alike(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for number, (a, b) in enumerate(zip(ours, theirs)):
            assert_alike(a, b, f"{where}[{number}]")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-6 if ".move" in where else 1e-12), where
    else:
        assert ours == theirs, where


def test_the_same_script_with_other_imports(processes):
    text = SCRIPT.read_text()
    changed = with_imports_changed(text)
    assert "torch.distributed.tensor" not in changed.split('"""')[2]
    theirs = processes(4).run(run_script, text, limit=90)
    ours = processes(4).run(run_script, changed, limit=90)
    for rank in range(4):
        assert_alike(ours[rank], theirs[rank], f"rank {rank}")
