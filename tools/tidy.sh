#!/usr/bin/env bash
# Runs clang-tidy over the library with the compile commands of a build folder.
set -euo pipefail
cd "$(dirname "$0")/.."
clang_tidy=$(command -v clang-tidy || echo .venv/bin/clang-tidy)
[ -x "$clang_tidy" ] || { echo "clang-tidy is missing; run: pip install clang-tidy==19.1.0" >&2; exit 1; }
git ls-files 'src/*.cc' | xargs -P "$(nproc)" -n 1 "$clang_tidy" -p "${1:?build folder}" --quiet
