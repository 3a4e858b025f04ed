#!/usr/bin/env python3
"""Builds the site from README, docs and the public interface: site.py PROJECT FOLDER

It copies the pages to FOLDER/source, adds the reference, and runs Sphinx, whose packages are in the running Python. meshtorch must be
importable: its docstrings are the Python reference.
"""

import importlib
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import reference

# The order of the navigation.
PARTS = {
    "Guide": "first_hour using dtensor modules data_parallel long_sequences parallelism checkpoint launching debugging porting add_an_op "
    "collectives llama llama_training",
    "Reference": "reference/cpp reference/python process commands rules operators python parity",
    "Explanation": "architecture reliability random measurements benchmarks collective_counts compatibility clients pytorch_tests testing stumbles",
}
PAGES_OF_PROJECT = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
PYTHON_MODULES = [
    "meshtorch",
    "meshtorch.parallel",
    "meshtorch.parallel.input_reshard",
    "meshtorch.fsdp",
    "meshtorch.experimental",
    "meshtorch.debug",
    "meshtorch.functional_collectives",
    "meshtorch.device_mesh",
    "meshtorch.placement_types",
    "meshtorch.point_to_point",
]


def _linked_files(page):
    """Links to files of the project that are no pages: they are copied, and so can be read."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s#:]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"", text):
        path = page.parent / (target[0] or target[1])
        if path.is_file() and path.suffix != ".md":
            yield path


def _copy(root, source):
    pages = [root / name for name in PAGES_OF_PROJECT if (root / name).exists()] + sorted((root / "docs").glob("*.md"))
    for file in {*pages, *(linked for page in pages for linked in _linked_files(page))}:
        target = source / file.resolve().relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    shutil.copyfile(root / "docs/conf.py", source / "conf.py")
    shutil.copyfile(root / "include/meshtorch/version.h", source / "version.h")
    for target in re.findall(r"Example: \[[^\]]*\]\(\.\./([^)#]+)", "".join(p.read_text() for p in (source / "reference").glob("*.md"))):
        (source / target).parent.mkdir(parents=True, exist_ok=True)
        if not (source / target).exists():
            shutil.copyfile(root / target, source / target)


def _index(root, source):
    """docs/index.md as the first page, with the navigation."""
    text = (root / "docs/index.md").read_text()
    text = re.sub(r"\]\((?!\.\./)([a-z_]+\.md)", r"](docs/\1", text).replace("](../", "](")
    text = re.sub(r"`(reference/\w+\.md)` on the site that `make docs` builds|`(reference/\w+\.md)` there", lambda m: f"[reference]({m[1] or m[2]})", text)
    for caption, pages in PARTS.items():
        paths = [page if "/" in page else f"docs/{page}" for page in pages.split() if "/" in page or (root / f"docs/{page}.md").exists()]
        text += "\n" + "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *paths, "```"]) + "\n"
    others = [name.removesuffix(".md") for name in PAGES_OF_PROJECT if (root / name).exists()]
    text += "\n" + "\n".join(["```{toctree}", ":hidden:", ":caption: Project", "", *others, "```"]) + "\n"
    (source / "index.md").write_text(text)
    (source / "docs/index.md").unlink()
    readme = source / "README.md"
    readme.write_text(readme.read_text().replace("](docs/index.md)", "](index.md)"))


def _python_reference(folder):
    parts = ["# Python reference", "", "In the examples two ranks run each line, as `meshtorch.spawn(2, fn)` does; `mesh` is their mesh with the axis `tp`,"]
    parts += ["`rank` the number of the rank, and what rank 0 prints is shown. [How it differs from PyTorch](../docs/python.md).", ""]
    seen = {}
    for module in PYTHON_MODULES:
        found = {name: getattr(importlib.import_module(module), name) for name in importlib.import_module(module).__all__}
        again = [name for name, value in found.items() if inspect.ismodule(value) or seen.setdefault(id(value), module) != module]
        parts += [f"## `{module}`", "", "```{eval-rst}", f".. automodule:: {module}", f"   :exclude-members: {', '.join(again)}", "```", ""]
        others = [f"`{seen[id(found[name])]}.{name}`" for name in again if id(found[name]) in seen]
        parts += [f"Also here: {', '.join(others)}.", ""] if others else []
    (folder / "python.md").write_text("\n".join(parts))


def main():
    root, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    source = out / "source"
    shutil.rmtree(source, ignore_errors=True)
    reference.write(root, source / "reference")
    _python_reference(source / "reference")
    _copy(root, source)
    _index(root, source)
    built = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(source), str(out / "html")])
    print(f"meshtorch: {out}/html/index.html" if built.returncode == 0 else "meshtorch: the site has warnings")
    sys.exit(built.returncode)


if __name__ == "__main__":
    main()
