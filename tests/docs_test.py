"""The pages are true of the project: docs_test.py PROJECT

Links lead somewhere; docs/process.md has every variable that the library and its tools read; what `<!-- snippet: FILE NAME -->` announces
is what stands in the file between two marks `[NAME]`, or the whole file but for its first line; lines end by column 100.
"""

import pathlib
import re
import sys
import textwrap

root = pathlib.Path(sys.argv[1])
pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted((root / "docs").glob("*.md"))
# Written by programs, or about what they write.
GENERATED = {"benchmarks.md", "clients.md", "collective_counts.md", "compatibility.md", "operators.md", "parity.md"}
problems = []


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title)).strip().lower().replace(" ", "-") for title in titles}


links = 0
for page in pages:
    for target in re.findall(r"\]\(([^)\s]+)\)|(?<=src=\")([^\"]+)", re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)):
        target = target[0] or target[1]
        if re.match(r"[a-z]+:", target):
            continue
        links += 1
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            problems.append(f"{page.relative_to(root)} leads to {target}, which is not there")
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            problems.append(f"{page.relative_to(root)} leads to {target}, and there is no such title")

table = (root / "docs/process.md").read_text()
read = {}
for folder in ("src", "tools/meshtorch_run"):
    for source in [*(root / folder).rglob("*.cc"), *(root / folder).rglob("*.h")]:
        for name in re.findall(r'"(MESHTORCH_[A-Z_]+)"', source.read_text()):
            read[name] = source.relative_to(root)
problems += [f"{source} reads {name}, which docs/process.md does not name" for name, source in read.items() if f"`{name}`" not in table and not name.startswith("MESHTORCH_FAULT_")]


def snippet(file, name):
    """What stands between the two marks, without its indentation; None if they are not there."""
    text = (root / file).read_text() if (root / file).exists() else ""
    if not name:
        return text.split("\n", 1)[1] if text else None
    found = re.search(rf"^ *(?://|#) \[{re.escape(name)}\]\n(.*?)^ *(?://|#) \[{re.escape(name)}\]$", text, flags=re.S | re.M)
    return textwrap.dedent(found[1]) if found else None


snippets = 0
for page in pages:
    for file, name, block in re.findall(r"<!-- snippet: (\S+) ?(\w*) -->\n```\w+\n(.*?)```", page.read_text(), flags=re.S):
        snippets += 1
        expected = snippet(file, name)
        if block != expected:
            problems.append(f"{page.relative_to(root)} does not show {name} of {file}:\n{expected}")
    if page.name in GENERATED:
        continue
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.S)
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > 100 and not line.startswith(("|", "    ", "<")) and " " in line.strip(" -*")[: 100 - 2]:
            problems.append(f"{page.relative_to(root)}:{number} is longer than 100 columns")
for file in ("examples/pages.cc", "examples/tensor_parallel.cc", "python/tests/page_programs.py"):
    for name in set(re.findall(r"(?://|#) \[(\w+)\]", (root / file).read_text())):
        if not any(f"snippet: {file} {name} -->" in page.read_text() for page in pages):
            problems.append(f"{file} has the mark {name}, which no page shows")

print("\n".join(problems) or f"{links} links, {len(read)} variables and {snippets} snippets")
sys.exit(bool(problems) or not links or not read or not snippets)
