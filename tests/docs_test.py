"""The pages: links lead somewhere, and docs/process.md has every variable that the library and its tools read: docs_test.py PROJECT"""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]
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

print("\n".join(problems) or f"{links} links and {len(read)} variables")
sys.exit(bool(problems) or not links or not read)
