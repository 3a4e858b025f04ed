#!/usr/bin/env python3
"""Counts the words of the sentences in README and docs: sentences.py PROJECT [--most 40]

It fails if a sentence of the text has more words than that. Code, tables, headings and pages that programs write do not count.
"""

import argparse
import re
import sys
from pathlib import Path

GENERATED = {"benchmarks.md", "clients.md", "collective_counts.md", "compatibility.md", "operators.md", "parity.md"}


def sentences(text):
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.S)
    text = "\n".join("" if line.startswith(("|", "#", "    ", "<")) else line for line in text.splitlines())
    for paragraph in re.split(r"\n\s*\n|\n\s*(?=(?:[-*]|\d+\.) )", text):
        paragraph = re.sub(r"`[^`]*`", "code", re.sub(r"!?\[(.*?)\]\([^)]*\)", r"\1", paragraph.replace("\n", " ")))
        paragraph = re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "", paragraph)
        yield from re.split(r"(?<=[.:;?!)])\s+(?=[A-Z*`(]|code)", paragraph)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path)
    parser.add_argument("--most", type=int, default=40)
    parser.add_argument("--counts", action="store_true", help="print the counts of each page")
    options = parser.parse_args()
    root, problems, total = options.project, [], 0
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted((root / "docs").glob("*.md"))
    for page in pages:
        if page.name in GENERATED or not page.exists():
            continue
        lengths = [(len(re.findall(r"[\w'%-]+", one)), one.strip()) for one in sentences(page.read_text())]
        lengths = [(count, one) for count, one in lengths if count]
        total += len(lengths)
        if options.counts:
            mean = sum(count for count, _ in lengths) / max(1, len(lengths))
            print(f"{page.name:24} {len(lengths):4} sentences, {mean:4.1f} words, {sum(count > 25 for count, _ in lengths):3} over 25, {sum(count > options.most for count, _ in lengths):3} over {options.most}")
        problems += [f"{page.relative_to(root)}: {count} words: {one}" for count, one in lengths if count > options.most]
    print("\n".join(problems) or f"{total} sentences, none over {options.most} words")
    sys.exit(bool(problems) or not total)


if __name__ == "__main__":
    main()
