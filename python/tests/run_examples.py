"""Runs the examples in the docstrings of meshtorch's public names on two ranks that are threads, and prints what is not as they say.

doctest itself replaces sys.stdout, which threads share: here each rank runs the statements, and rank 0 compares their values.
"""

import ast
import doctest
import importlib
import inspect
import sys
import traceback

import meshtorch
import torch

CHECKER, FLAGS = doctest.OutputChecker(), doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def documented(modules):
    """{full name: docstring} of what modules list in __all__, and of the public methods of its classes."""
    found = {}
    for name in modules:
        module = importlib.import_module(name)
        for public in module.__all__:
            value = getattr(module, public)
            if inspect.ismodule(value):
                continue
            found[f"{name}.{public}"] = value.__doc__ or ""
            for of, member in vars(value).items() if inspect.isclass(value) else ():
                if not of.startswith("_") and (inspect.isfunction(member) or getattr(member, "__doc__", None)):
                    found[f"{name}.{public}.{of}"] = getattr(member, "__doc__", None) or ""
    return found


def _value_of(source, names):
    """What a prompt would show of the statement: the text of its value."""
    body = ast.parse(source).body
    last = ast.Expression(body.pop().value) if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "<example>", "exec"), names)
    value = eval(compile(last, "<example>", "eval"), names) if last else None
    return "" if value is None else f"{value!r}\n"


def _shown_in_with(example):
    """A with statement whose last line is an expression shows it, too."""
    tree = ast.parse(example.source)
    block = tree.body[-1]
    if isinstance(block, ast.With) and isinstance(block.body[-1], ast.Expr) and example.want:
        block.body[-1] = ast.copy_location(ast.Assign([ast.Name("_shown", ast.Store())], block.body[-1].value), block.body[-1])
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n_shown"
    return example.source


def run(docstrings):
    problems, count = [], 0
    for name, text in sorted(docstrings.items()):
        examples = [one for one in doctest.DocTestParser().get_examples(text) if doctest.SKIP not in one.options]
        count += len(examples)

        def on_rank(rank):
            mesh = meshtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            names = {"torch": torch, "meshtorch": meshtorch, "rank": rank, "mesh": mesh}
            for example in examples:
                shown = _value_of(_shown_in_with(example), names)
                if rank == 0 and not CHECKER.check_output(example.want, shown, FLAGS):
                    problems.append(f"{name}\n  {example.source.rstrip()}\n  says {example.want!r}\n  is   {shown!r}")

        try:
            if examples:
                meshtorch.spawn(2, on_rank, timeout=30)
        except BaseException:
            problems.append(f"{name}\n{traceback.format_exc()}")
    return problems, count


if __name__ == "__main__":
    problems, count = run(documented(sys.argv[1:]))
    print("\n".join(problems) or f"{count} examples")
    sys.exit(bool(problems) or not count)
