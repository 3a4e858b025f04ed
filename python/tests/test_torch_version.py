"""The package says so if the torch that is there is not the one that it was built for."""

import subprocess
import sys

import meshtorch
import torch


def error_of_import(version):
    program = f"import torch\ntorch.__version__ = {version!r}\nimport meshtorch"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr


def test_another_torch_is_refused_in_words():
    built_for = torch.__version__.split("+")[0]
    told = error_of_import("2.99.1+cu150")
    assert f"ImportError: meshtorch was built for torch {built_for}, and this is torch 2.99.1+cu150" in told
    assert f"do: pip install torch=={built_for}, or build meshtorch for this torch" in told


def test_builds_for_other_devices_of_the_same_version_are_one():
    assert error_of_import(torch.__version__.split("+")[0] + "+cu150") == ""


def test_the_folders_of_the_c_plus_plus_part_are_asked_of_the_package():
    command = [sys.executable, "-m", "meshtorch", "--cmake-dir"]
    asked = subprocess.run(command, capture_output=True, text=True)
    folder = next(iter(meshtorch.__path__)) + "/lib/cmake/meshtorch"
    if asked.returncode == 0:
        assert asked.stdout.strip() == folder
    else:  # a build folder
        assert f"meshtorch: {folder} is not there" in asked.stderr
