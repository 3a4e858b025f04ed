#!/usr/bin/env bash
# Runs clang-tidy over the library. Its compile commands come from a build folder of its own, where each source is compiled alone.
set -euo pipefail
cd "$(dirname "$0")/.."
clang_tidy=$(command -v clang-tidy || echo .venv/bin/clang-tidy)
[ -x "$clang_tidy" ] || { echo "clang-tidy is missing; run: pip install clang-tidy==19.1.0" >&2; exit 1; }
cmake --preset release -B build/tidy -DMESHTORCH_UNITY=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
git ls-files 'src/*.cc' | xargs -P "$(nproc)" -n 1 "$clang_tidy" -p build/tidy --quiet
