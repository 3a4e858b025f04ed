"""Types: the stub of the C++ part is that of the module, public functions are annotated, and a program passes `mypy --strict`."""

import ast
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys

import meshtorch
import meshtorch._C
import pytest

PACKAGE = pathlib.Path(meshtorch.__file__).resolve().parent
PROGRAM = pathlib.Path(__file__).resolve().parent / "typed_program.py"
PUBLIC_MODULES = [
    "meshtorch",
    "meshtorch.debug",
    "meshtorch.device_mesh",
    "meshtorch.drop_in",
    "meshtorch.experimental",
    "meshtorch.fsdp",
    "meshtorch.functional_collectives",
    "meshtorch.parallel",
    "meshtorch.parallel.input_reshard",
    "meshtorch.placement_types",
    "meshtorch.point_to_point",
]


def _arguments(function):
    arguments = function.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _of_stub(nodes):
    """{name: the lists of argument names of its overloads}, {name: nodes of the class}"""
    functions, classes = {}, {}
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(_arguments(node))
        elif isinstance(node, ast.ClassDef):
            classes[node.name] = node.body
        elif isinstance(node, ast.AnnAssign):
            functions.setdefault(node.target.id, [])
    return functions, classes


def _of_module(name, function):
    """The lists of argument names that pybind11 writes into the docstring, one a signature."""
    lines = [line for line in (function.__doc__ or "").splitlines() if re.match(rf"(\d+\. )?{re.escape(name)}\(", line)]
    signatures = [re.sub(r"^\d+\. ", "", line) for line in lines if "*args, **kwargs" not in line]
    plain = [re.sub(r" -> .*|<[^<>]*>", lambda found: "" if found[0][1] == "-" else "...", line) for line in signatures]
    return [_arguments(ast.parse(f"def {line}: ...").body[0]) for line in plain]


def _differences(where, functions, module):
    here = {name for name in vars(module) if not name.startswith("__") and not inspect.isclass(vars(module)[name])}
    if inspect.isclass(module):
        here = {name for name in here if not inspect.isfunction(inspect.unwrap(getattr(module, name))) or not name.startswith("_")}
        here = {name for name in here if not (name.startswith("_") and isinstance(vars(module)[name], property))}
    stubbed = {name for name in functions if not name.startswith("__") and not name.startswith("_pybind")}
    found = [f"{where}{name} is not in the stub" for name in sorted(here - stubbed) if not name.startswith("_pybind")]
    found += [f"{where}{name} is in the stub only" for name in sorted(stubbed - here)]
    for name in sorted(here & stubbed):
        actual = _of_module(name, getattr(module, name)) if inspect.isroutine(getattr(module, name)) else []
        if actual and sorted(actual) != sorted(functions[name]):
            found.append(f"{where}{name} takes {actual}, and in the stub {functions[name]}")
    return found


def test_the_stub_has_the_names_and_arguments_of_the_module():
    functions, classes = _of_stub(ast.parse((PACKAGE / "_C.pyi").read_text()).body)
    functions = {name: of for name, of in functions.items() if name not in ("_GroupLike", "_ReductionLike")}
    of_module = {name: value for name, value in vars(meshtorch._C).items() if inspect.isclass(value)}
    problems = _differences("_C.", functions, meshtorch._C)
    problems += [f"class {name} is on one side only" for name in sorted(set(classes) ^ set(of_module))]
    for name in sorted(set(classes) & set(of_module)):
        problems += _differences(f"_C.{name}.", _of_stub(classes[name])[0], of_module[name])
    assert not problems, "\n".join(problems)


def _public(module):
    """{name: value} of functions and classes that are written in Python, methods among them."""
    found = {}
    for name in getattr(module, "__all__"):
        value = getattr(module, name)
        if inspect.isfunction(value):
            found[name] = value
        elif inspect.isclass(value) and value.__module__.startswith("meshtorch") and value.__module__ != "meshtorch._C":  # that has a stub
            for of, member in vars(value).items():
                function = member.fget if isinstance(member, property) else member
                if inspect.isfunction(function) and (not of.startswith("_") or of == "__init__"):
                    found[f"{name}.{of}"] = function
    return found


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_public_functions_are_annotated(name):
    if name == "meshtorch.drop_in":  # its import replaces modules of torch
        source = ast.parse((PACKAGE / "drop_in.py").read_text())
        assert all(node.returns for node in source.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"))
        return
    missing = []
    for function_name, function in _public(importlib.import_module(name)).items():
        if function.__module__.startswith("meshtorch") and "__create_fn__" not in function.__qualname__:
            signature = inspect.signature(function)
            parts = {one.name: one.annotation for one in signature.parameters.values() if one.name not in ("self", "cls")}
            parts["the result"] = signature.return_annotation
            missing += [f"{name}.{function_name}: {part}" for part, kind in parts.items() if kind is inspect.Parameter.empty]
    assert not missing, "\n".join(missing)


def test_all_public_modules_are_looked_at():
    """A module whose name begins with "_" is not public; those that only name others' again are PyTorch's names for them."""
    names = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in PACKAGE.rglob("*.py")}
    public = {name.removesuffix(".__init__") for name in names if not any(part.startswith("_") and part != "__init__" for part in name.split("."))}
    again = {"meshtorch.context_parallel", "meshtorch.parallel.api", "meshtorch.parallel.loss", "meshtorch.parallel.plan", "meshtorch.parallel.style"}
    assert public - again == set(PUBLIC_MODULES)


def test_the_package_says_that_it_has_types():
    assert (PACKAGE / "py.typed").exists()


def test_a_program_passes_mypy_strict_and_runs(tmp_path):
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\n[mypy-meshtorch.*]\nfollow_imports = silent\n")  # as of an installed package
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path), str(PROGRAM)]
    environment = {**os.environ, "MYPYPATH": str(PACKAGE.parent)}
    checked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import meshtorch\n\nmeshtorch.distribute_tensor([1.0], placements=meshtorch.Shard(0))\n")
    found = subprocess.run([*command[:-1], str(wrong)], env=environment, capture_output=True, text=True, timeout=300)
    assert found.stdout.count("[arg-type]") == 2, found.stdout + found.stderr  # the types are seen
    ran = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
