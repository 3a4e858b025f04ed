"""Docstrings: every public name has one, with an example or the name of one that has; all examples are run."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from run_examples import documented
from test_types import PUBLIC_MODULES

# Importing drop_in replaces modules of torch, and so it is not imported here.
MODULES = [name for name in PUBLIC_MODULES if name != "meshtorch.drop_in"] + ["meshtorch.context_parallel"]
RUNNER = Path(__file__).resolve().parent / "run_examples.py"
SITE = Path(__file__).resolve().parents[2] / "tools/docs/site.py"


def test_the_reference_has_all_public_modules():
    found = [node.value for node in ast.parse(SITE.read_text()).body if isinstance(node, ast.Assign) and node.targets[0].id == "PYTHON_MODULES"]
    assert set(ast.literal_eval(found[0])) == set(PUBLIC_MODULES) - {"meshtorch.drop_in"}  # its page is docs/porting.md


def test_examples_run_as_they_say():
    ran = subprocess.run([sys.executable, str(RUNNER), *MODULES], capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", MODULES)
def test_public_names_have_a_docstring_with_an_example(name):
    of_module = documented([name])
    plain = {full for full in of_module if full.removeprefix(name + ".").count(".") == 0}
    problems = [f"{full} has no docstring" for full, text in of_module.items() if not text.strip()]
    problems += [f"{full} has no example" for full in sorted(plain) if ">>>" not in of_module[full] and "for an example" not in of_module[full]]
    assert not problems, "\n".join(problems)
