"""The wall: reads the symbols that the shared library exports, and fails on one that no header offers.

exported_symbols.py NM LIBRARY PROJECT: what has meshtorch's namespace must be marked MESHTORCH_API in a public header, or
MESHTORCH_FOR_PYTHON in a header of src.
"""

import pathlib
import re
import subprocess
import sys

PREFIXES = re.compile(r"^(vtable for|VTT for|typeinfo for|typeinfo name for|guard variable for|(non-)?virtual thunk to|"
                      r"construction vtable for|covariant return thunk to) ")
NAMESPACES = {"meshtorch", "checkpoint", "safetensors", "dcp", "report", "nn", "detail", "internal"}


def marked(folder: pathlib.Path, mark: str) -> set[str]:
    """The names that a declaration with this mark introduces: a class, or a function."""
    names = set()
    for header in folder.rglob("*.h"):
        text = re.sub(r"//.*", "", header.read_text())
        for declaration in re.findall(mark + r"\b([^;{]*)[;{]", text):
            declaration = re.sub(r"\s+", " ", declaration).strip()
            found = re.match(r"(?:[\w:<>,&*\[\] ]*?[ &*>])?(operator\W+?|\w+) ?\(", declaration)
            names.add(found[1] if found else re.match(r"\w+", declaration)[0])
    return names


def own_name(symbol: str) -> list[str] | None:
    """The parts of the symbol's qualified name; nothing for what is not in meshtorch's namespace."""
    found = re.match(r"meshtorch(?:::(?!operator\b)\w+)*(?:::(?:~\w+|operator(?:\(\)|[^(]*)))?", PREFIXES.sub("", symbol))
    return found[0].split("::") if found else None



def main() -> int:
    nm, library, project = sys.argv[1:]
    lines = subprocess.run([nm, "-D", "--defined-only", "-C", library], check=True, capture_output=True, text=True).stdout
    api = marked(pathlib.Path(project) / "include", "MESHTORCH_API")
    for_python = marked(pathlib.Path(project) / "src", "MESHTORCH_FOR_PYTHON")
    leaks, own = [], 0
    for line in lines.splitlines():
        symbol = re.sub(r"^[0-9a-f]+ \w ", "", line).split("@@")[0]
        parts = own_name(symbol)
        if parts is None:  # a template of another library, of a class that is offered
            continue
        own += 1
        inner = [part for part in parts if part not in NAMESPACES]
        offered = for_python if "internal" in parts else api
        if not inner or inner[0] not in offered:
            leaks.append(symbol)
    for symbol in leaks:
        print(f"exported, but no header offers it: {symbol}")
    print(f"{own} symbols of meshtorch are exported, {len(leaks)} of them should not be")
    if own < 100:
        print("that are too few: the library's symbols were not read")
    return 1 if leaks or own < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
