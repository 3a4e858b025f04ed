#!/usr/bin/env bash
# Runs clang-tidy over the library, or with --changed over the sources that differ from the main branch (or from the commit
# that MESHTORCH_TIDY_SINCE names); on the main branch itself, those of the last commit. Its compile commands come from a build folder of its own, where each source is compiled alone.
set -euo pipefail
cd "$(dirname "$0")/.."
clang_tidy=$(command -v clang-tidy || echo .venv/bin/clang-tidy)
[ -x "$clang_tidy" ] || { echo "clang-tidy is missing; run: apt-get install clang-tidy" >&2; exit 1; }
cmake --preset release -B build/tidy -DMESHTORCH_UNITY=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
sources() {
  if [ "${1:-}" = --changed ]; then
    local since
    since=${MESHTORCH_TIDY_SINCE:-$(git merge-base HEAD origin/main 2>/dev/null || true)}
    [ -n "$since" ] && [ "$since" != "$(git rev-parse HEAD)" ] || since=HEAD~1
    { git diff --name-only --diff-filter=d "$since" -- 'src/*.cc'
      git ls-files -o --exclude-standard 'src/*.cc'; } | sort -u
  else
    git ls-files 'src/*.cc'
  fi
}
sources "${1:-}" | xargs -r -P "$(nproc)" -n 1 "$clang_tidy" -p build/tidy --quiet
