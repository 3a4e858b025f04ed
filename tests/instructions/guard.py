"""Counts the instructions of small pieces of work and compares them with the numbers that are kept.

A count may be larger than the kept one by the tolerance, and a planted slowdown of 30 % must be found. Numbers
hold for one compiler and one LibTorch: with others, and without valgrind, the test is skipped with a message.
`guard.py PROGRAM KEPT COMPILER TORCH --keep` writes them anew.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TOLERANCE = 0.10
SKIPPED = 77  # ctest knows it


def counts(program, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out", program]
            + list(arguments),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=280,
        )
        found = {}
        for file in pathlib.Path(folder).iterdir():
            text = file.read_text()
            name = re.search(r"^desc: Trigger: Client Request: (\w+)", text, re.M)
            total = re.search(r"^totals: (\d+)", text, re.M)
            if name and total:
                found[name[1]] = int(total[1])
        return found


def slower(measured, kept):
    return [
        f"{name}: {measured.get(name, 0):,} instructions, {measured.get(name, 0) / number - 1:+.1%} of {number:,}"
        for name, number in kept.items()
        if measured.get(name, 0) > number * (1 + TOLERANCE) or name not in measured
    ]


def main():
    program, kept_file, compiler, torch = sys.argv[1:5]
    where = {"compiler": compiler, "libtorch": torch}
    if shutil.which("valgrind") is None:
        print("skipped: there is no valgrind; run `apt-get install valgrind`")
        return SKIPPED
    if "--keep" in sys.argv:
        kept = {**where, "instructions": dict(sorted(counts(program).items()))}
        pathlib.Path(kept_file).write_text(json.dumps(kept, indent=1) + "\n")
        return 0
    kept = json.loads(pathlib.Path(kept_file).read_text())
    if {name: kept[name] for name in where} != where:
        print(f"skipped: the kept numbers are of {kept['compiler']} and LibTorch {kept['libtorch']}, not of {where}")
        return SKIPPED
    measured = counts(program)
    failed = slower(measured, kept["instructions"])
    for name, number in measured.items():
        print(f"{name}: {number:,} instructions, kept {kept['instructions'].get(name, 0):,}")
    if failed:
        print("slower than kept (do: find out why, or keep the new numbers with --keep):", *failed, sep="\n  ")
        return 1
    missed = set(kept["instructions"]) - {line.split(":")[0] for line in slower(counts(program, "--planted"), measured)}
    if missed:
        print("a planted slowdown of 30 % was not found in:", *sorted(missed))
        return 1
    return 0


sys.exit(main())
