"""What the public headers declare, with their comments: read from include/meshtorch, whose form clang-format keeps."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Entry:
    """One class, function, enum, alias or macro at the scope of a namespace."""

    header: str
    namespace: str
    name: str
    kind: str
    comment: str
    code: str

    @property
    def full_name(self):
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


_NAMED = [
    ("class", re.compile(r"^(?:template <.*?>\s*)?(?:class|struct)\s+(?:MESHTORCH_API\s+|\[\[\w+\]\]\s+)*(\w+)", re.S)),
    ("enum", re.compile(r"^enum class\s+(?:MESHTORCH_API\s+)?(\w+)")),
    ("concept", re.compile(r"^template <.*?>\s*concept\s+(\w+)\s*=", re.S)),
    ("alias", re.compile(r"^(?:template <.*?>\s*)?using\s+(\w+)\s*=", re.S)),
    ("module", re.compile(r"^MESHTORCH_(?:NN|MODULE)\((\w+)\)")),
    ("constant", re.compile(r"^(?:MESHTORCH_API\s+)?(?:inline |extern )*const(?:expr)?\s[^(]*?(\w+)\s*(?:=|;|\{)")),
    ("function", re.compile(r"(operator\s*[^\s\w(]+|\b\w+)\(")),
]


def _named(code):
    """(kind, name) of a declaration; ("", "") of what a reference does not list, as forward declarations."""
    if re.fullmatch(r"(template <[^;]*>\s*)?(class|struct|enum class) \w+( : [\w:]+)?;", code.strip()) or code.startswith(("friend", "static_assert", "template <>")):
        return "", ""
    for kind, pattern in _NAMED:
        text = re.sub(r"^template <.*?>\s*(?:requires .*?\n\s*)?", "", code, flags=re.S) if kind == "function" else code
        text = re.sub(r"__attribute__\(\(.*?\)\)|decltype\([^()]*\)|std::function<[^;]*?\)>|requires\s*\(.*?\)", "", text) if kind == "function" else text
        found = pattern.search(text)
        if found:
            return kind, found[1].replace(" ", "")
    return "", ""


def _statement_end(lines, start):
    """The line after the declaration that begins at `start`."""
    depth, seen_brace = 0, False
    for number in range(start, len(lines)):
        code = re.sub(r'"(?:\\.|[^"\\])*"|//.*', "", lines[number])
        for character in code:
            if character in "{(":
                depth += 1
                seen_brace = seen_brace or character == "{"
            elif character in "})":
                depth -= 1
        ends = code.rstrip()
        if depth == 0 and (ends.endswith(";") or (seen_brace and ends.endswith("}"))):
            return number + 1
    return len(lines)


def _shown(code):
    """The declaration as a reference shows it: without bodies of functions, private parts, and marks of the compiler."""
    if code.startswith("MESHTORCH_API "):  # what follows is aligned with it
        code = re.sub(r"\n {14}(?= )", "\n", code)
    lines, hidden, result = code.split("\n"), False, []
    is_class = _named(code)[0] == "class"
    number = 0
    while number < len(lines):
        line = lines[number]
        if is_class and re.fullmatch(r" (private|protected|public):", line):
            hidden = line != " public:"
            number += 1
            continue
        hidden = hidden and not line.startswith("}")
        body = re.match(r"^(\s*)(?!.*\b(?:class|struct|enum|union)\b)\S.*\)[^;={]*(?:\s:\s.*)?\{", line)
        if not hidden and body is None:
            result.append(line)
        elif not hidden:
            end = _statement_end(lines, number)
            head = re.sub(r"\s*(?<!:)(?::\s(?!:)[^{]*)?\{.*$", "", line)
            result.append(head + ";")
            number = end - 1
        number += 1
    text = re.sub(r"MESHTORCH_API |MESHTORCH_FOR_PYTHON ", "", "\n".join(result)).rstrip()
    text = re.sub(r"\n{3,}", "\n\n", re.sub(r"\n\s*friend (?:class|struct) [^;]*;", "", text))
    return re.sub(r"\s*\n\};$", "\n};", text)


def read(path):
    """(first comment, entries) of a header."""
    text = Path(path).read_text()
    text = re.sub(r"\\\n", " ", text)
    lines = text.split("\n")
    first = []
    while lines and lines[0].startswith("//"):
        first.append(lines.pop(0)[2:].strip())
    entries, namespaces, comment, shared, number = [], [], [], "", 0
    while number < len(lines):
        line = lines[number]
        if line.startswith("namespace ") and line.endswith("{"):
            namespaces.append(line.split()[1] if len(line.split()) > 2 else "")
            comment, shared, number = [], "", number + 1
        elif re.match(r"}(\s*// namespace.*)?$", line):
            namespaces.pop()
            number += 1
        elif not line.strip():
            comment, shared, number = [], "", number + 1
        elif line.startswith("//"):
            comment.append(line[2:].strip())
            number += 1
        elif line.startswith("#define"):
            name = re.match(r"#define (\w+)", line)[1]
            if comment:
                shared = " ".join(comment)
            if shared and not namespaces:
                head = re.match(r"#define \w+(\([^)]*\))?", line)[0]
                entries.append(Entry(Path(path).name, "", name, "macro", shared, head))
            comment, number = [], number + 1
        elif line.startswith("#"):
            comment, number = [], number + 1
        else:
            end = _statement_end(lines, number)
            code = "\n".join(lines[number:end])
            kind, name = _named(code)
            if comment:
                shared, comment = " ".join(comment), []
            inside = "::".join(part for part in namespaces if part)
            is_public = inside.startswith("meshtorch") and not re.search(r"\b(detail|internal)\b", inside)
            if is_public and name:
                entries.append(Entry(Path(path).name, inside, name, kind, shared, _shown(code)))
            number = end
    return " ".join(first), entries


def read_all(root):
    """{name of the header: (first comment, entries)}, without the header that includes all others."""
    headers = sorted((Path(root) / "include/meshtorch").glob("*.h"))
    return {path.name: read(path) for path in headers if path.name not in ("meshtorch.h", "api.h")}
