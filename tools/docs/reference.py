#!/usr/bin/env python3
"""The reference of the C++ library, a page for each public header, with a link to an example of each name.

reference.py PROJECT --check           fails if a public name is missing, or has neither an example nor a comment
reference.py PROJECT --write FOLDER    writes the pages
"""

import argparse
import re
import sys
from pathlib import Path

import headers

# How programs write the namespaces inside meshtorch.
_SHORT = {"checkpoint": "cp", "safetensors": "st", "dcp": "dcp", "report": "report", "nn": "nn"}
# Names that programs use through others: the example is that of the other.
_USED_THROUGH = {
    "meshtorch::CallSite": "meshtorch::all_reduce",
    "meshtorch::Hooked": "MESHTORCH_MODULE",
    "meshtorch::HookedBase": "MESHTORCH_MODULE",
    "meshtorch::HookedHolder": "MESHTORCH_MODULE",
    "meshtorch::dcp::Entry": "meshtorch::dcp::Folder",
    "meshtorch::throw_no_such_dim": "meshtorch::Shard",
}


def _anchor(title):
    return re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")


def code_of_pages(root):
    """(link from the root, code) of each block of C++ in README and docs: under which title it stands."""
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        title, block = "", None
        for line in page.read_text().splitlines():
            if block is None and line.startswith("#"):
                title = line.lstrip("# ")
            elif block is None and line.startswith("```cpp"):
                block = []
            elif block is not None and line.startswith("```"):
                yield f"{page.relative_to(root)}#{_anchor(title)}", "\n".join(block)
                block = None
            elif block is not None:
                block.append(line)


def code_of_programs(root):
    for folder in ("examples", "tests/dist", "tests/checkpoint", "tests/llama", "tests/events", "tests/unit", "tests/sim", "tests/inside", "tests/launch", "tests/property", "tests/install"):
        for source in sorted((root / folder).rglob("*.cc")):
            yield str(source.relative_to(root)), source.read_text()


def _use(entry):
    """What an example of it holds."""
    name = re.escape(entry.name)
    inner = entry.namespace.split("::")[1:]
    if inner:
        spaces = "|".join({inner[-1], _SHORT.get(inner[-1], inner[-1])})
        return re.compile(rf"\b(?:{spaces})::{name}\b")
    if entry.name.startswith("operator"):
        return re.compile("<<" if "<<" in entry.name else re.escape(entry.name.removeprefix("operator")))
    after = r"(?:<[^<>]*>)?\(" if entry.kind == "function" else r"\b"
    return re.compile(rf"(?<![\w.>]){name}{after}")


def _options_use(entry):
    """Options are written in braces: an example of their first members."""
    return [re.compile(rf"\.{member}\s*=") for member in re.findall(r"(\w+) = [^;]*;", entry.code)]


def find_examples(root, entries):
    """{full name: link from the root}"""
    found, pages, programs = {}, list(code_of_pages(root)), list(code_of_programs(root))
    for entry in entries:
        patterns = [_use(entry)]
        if entry.name.endswith("Options"):
            patterns += _options_use(entry)
        for link, code in (*pages, *programs):
            if any(pattern.search(code) for pattern in patterns):
                found.setdefault(entry.full_name, link)
                break
    for name, other in _USED_THROUGH.items():
        if other in found:
            found[name] = found[other]
    return found


def marked_names(root):
    """Names that headers mark as exported: found without looking at how they are declared."""
    for path in sorted((root / "include/meshtorch").glob("*.h")):
        text = re.sub(r"//.*|#define.*", "", path.read_text())
        for declaration in re.findall(r"MESHTORCH_API\s+([^;{(]*)", text):
            words = re.findall(r"operator\s*\S+|\w+", declaration.split(":")[0] if not re.search(r"::", declaration) else declaration)
            if words:
                yield path.name, words[-1].replace(" ", "")


def problems(root):
    every = headers.read_all(root)
    entries = [entry for _, of_header in every.values() for entry in of_header]
    names = {(entry.header, entry.name) for entry in entries}
    missing = [
        f"{header}: {name} is not in the reference"
        for header, name in marked_names(root)
        if (header, name) not in names and not any(name in entry.code for entry in entries if entry.header == header)
    ]
    examples = find_examples(root, entries)
    for entry in entries:
        if entry.kind not in ("module",) and not entry.comment:
            missing.append(f"{entry.header}: {entry.full_name} has no comment")
        if entry.kind not in ("module", "macro", "alias", "constant", "concept") and entry.full_name not in examples:
            missing.append(f"{entry.header}: {entry.full_name} has no example")
    return sorted(set(missing)), len(entries)


def write(root, folder):
    folder.mkdir(parents=True, exist_ok=True)
    every = headers.read_all(root)
    examples = find_examples(root, [entry for _, of_header in every.values() for entry in of_header])
    rows, pages = [], []
    for header, (first, entries) in every.items():
        page = header.replace(".h", "_h")
        parts = [f"# `<meshtorch/{header}>`", "", first, ""]
        modules = [entry.name for entry in entries if entry.kind == "module"]
        by_name = {}
        for entry in entries:
            if entry.kind != "module":
                by_name.setdefault(entry.full_name, []).append(entry)
        for full_name, same in by_name.items():
            parts += [f"## `{full_name}`", ""]
            for comment in dict.fromkeys(entry.comment for entry in same if entry.comment):
                parts += [comment, ""]
            parts += ["```cpp", "\n".join(entry.code for entry in same), "```", ""]
            if full_name in examples:
                parts += [f"Example: [{examples[full_name].split('#')[0]}](../{examples[full_name]})", ""]
        if modules:
            parts += ["## Modules of LibTorch with hooks", "", ", ".join(f"`{name}`" for name in modules), ""]
        (folder / f"{page}.md").write_text("\n".join(parts))
        names = ", ".join(f"`{name.split('::')[-1]}`" for name in list(by_name)[:6]) + (", …" if len(by_name) > 6 else "")
        rows.append(f"| [`<meshtorch/{header}>`]({page}.md) | {first.split('. ')[0].split(': ')[0].rstrip('.')} | {names} |")
        pages.append(page)
    text = ["# C++ reference", "", "`<meshtorch/meshtorch.h>` has all of it; each header can be included alone.", ""]
    text += ["| header | for | |", "|---|---|---|", *rows, "", "```{toctree}", ":hidden:", "", *pages, "```", ""]
    (folder / "cpp.md").write_text("\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.write:
        write(options.project, options.write)
    if options.check:
        missing, count = problems(options.project)
        print("\n".join(missing) or f"{count} names, each with a comment and an example")
        sys.exit(bool(missing) or not count)


if __name__ == "__main__":
    main()
