#!/usr/bin/env python3
"""Builds and tests meshtorch with several versions of torch, and writes docs/compatibility.md.

Each version gets a clone of the committed tree in build/compat, where `make demo` and `make test` start from nothing. With --light, only
what C++ programs need of torch is downloaded: the library is built, and the tests of C++ run.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/compatibility.json"
PAGE = ROOT / "docs/compatibility.md"
# ctest's names, and the column that each counts in.
COLUMNS = {"unit": "unit", "sim": "rules proved", "inside_threads": "inside", "property": "every operator",
           "dist_threads": "thread ranks", "dist_shm": "4 processes, shm", "dist_gloo": "4 processes, gloo",
           "install": "installed, by a project of its own", "python": "Python"}
OF_PYTHON = {"python"}


class Version:
    def __init__(self, version, light):
        self.version, self.light = version, light
        self.folder = ROOT / "build/compat" / version / "meshtorch"
        self.log = self.folder.parent / "log.txt"
        self.environment = {k: v for k, v in os.environ.items() if k not in ("MESHTORCH_PYTHON", "MESHTORCH_LIBTORCH", "CMAKE_PREFIX_PATH")}
        self.environment["MESHTORCH_TORCH"] = version

    def run(self, *command, may_fail=False):
        with self.log.open("a") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            code = subprocess.run(command, cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT).returncode
        if code and not may_fail:
            sys.exit(f"meshtorch: torch {self.version}: `{' '.join(command)}` failed with {code}\n  in: {self.log}\n  do: read its end")

    def step(self, text):
        print(f"torch {self.version}: {text}", flush=True)

    def prepare(self):
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        if not self.folder.exists():
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.folder)], check=True)
        self.log.write_text("")
        self.run("git", "fetch", "--quiet", str(ROOT), "HEAD")
        self.run("git", "checkout", "--quiet", "--force", "FETCH_HEAD")

    def results(self):
        self.prepare()
        if self.light:
            self.step("installing and building")
            self.run("tools/setup.sh", "--library")
            self.run("cmake", "--preset", "release")
            self.run("cmake", "--build", "build/release", "-j", str(os.cpu_count()))
            self.step("testing")
            names = "|".join(name for name in COLUMNS if name not in OF_PYTHON)
            self.run("ctest", "--preset", "release", "-j", str(os.cpu_count() + 1), "-R", f"^({names})$", may_fail=True)
        else:
            self.step("make demo")
            self.run("make", "demo")
            self.step("make test")
            self.run("make", "test", may_fail=True)
        return {"build": self.build(), "date": datetime.date.today().isoformat(), "light": self.light, "entries": self.entries(), "tests": self.counts()}

    def build(self):
        """What CMake says of this LibTorch, such as `2.15.0 (CUDA build)`, and whether the backend nccl was compiled."""
        text = self.log.read_text()
        text = text[text.rindex("-- LibTorch ") :]  # the last time, with all that the tests need
        kind = re.search(r"LibTorch \S+ \((\w+) build\)", text)[1]
        if kind == "CUDA":
            kind += ", nccl not compiled" if "The backend nccl is not built" in text else ", nccl compiled"
        return kind

    def entries(self):
        """ctest's closing line: entries that passed, and all."""
        failed, all_entries = re.findall(r"tests passed, (\d+) tests failed out of (\d+)", self.log.read_text())[-1]
        return [int(all_entries) - int(failed), int(all_entries)]

    def counts(self):
        """By ctest's name: how many tests passed and failed, as the test runners' closing lines say."""
        found = {}
        log = (self.folder / "build/release/Testing/Temporary/LastTest.log").read_text(errors="replace")
        for part in re.split(r"^\d+/\d+ Testing: ", log, flags=re.M)[1:]:
            name = part.split("\n", 1)[0].strip()
            passed = [int(n) for n in re.findall(r"\[  PASSED  \] (\d+) tests?", part)] + [int(n) for n in re.findall(r"(\d+) passed(?! over)", part)]
            failed = [int(n) for n in re.findall(r"(\d+) FAILED TESTS?", part)] + [int(n) for n in re.findall(r"(\d+) failed", part)]
            is_passed = "Test Passed." in part or "Test Pass Reason:" in part
            found[name] = {"passed": max(passed, default=int(is_passed)), "failed": max(failed, default=0) if not is_passed else 0,
                           "ended": is_passed}
        return found


def cell(result):
    if result is None:
        return ""
    if result["ended"]:
        return f"{result['passed']}"
    return f"{result['passed']}, **{result['failed'] or '?'} failed**"


def page(all_results):
    lines = ["# Compatibility", "",
             "Made by `make compat`: `make demo` and `make test` from nothing, with each version of torch in an environment of its own. Tests that passed:", "",
             f"| torch | LibTorch | ctest | {' | '.join(COLUMNS.values())} | date |", "|---" * (len(COLUMNS) + 4) + "|"]
    for version in sorted(all_results, key=lambda v: [int(n) for n in v.split(".")]):
        result = all_results[version]
        cells = [cell(result["tests"].get(name)) for name in COLUMNS]
        passed, entries = result["entries"]
        lines.append(f"| {version} | {result['build']} | {passed} of {entries} | {' | '.join(cells)} | {result['date']} |")
    notes = PAGE.read_text().split("<!-- notes -->\n", 1)[1] if PAGE.exists() and "<!-- notes -->\n" in PAGE.read_text() else ""
    return "\n".join([*lines, "", "<!-- notes -->", ""]) + notes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=["2.13.0", "2.14.1", "2.15.0"], metavar="VERSION")
    parser.add_argument("--light", action="store_true", help="C++ only, without torch's large requirements")
    options = parser.parse_args()
    for version in options.versions:
        result = Version(version, options.light).results()
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}  # as another run may have left it
        results[version] = result
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        PAGE.write_text(page(results))
        failed = [name for name, result in results[version]["tests"].items() if not result["ended"]]
        print(f"torch {version}: {'failed: ' + ', '.join(failed) if failed else 'all passed'}", flush=True)
    print(f"written: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
