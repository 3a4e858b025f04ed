#!/usr/bin/env bash
# Formats all C++ sources, or with --check reports those that are not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
# Other versions break lines elsewhere.
for clang_format in .venv/bin/clang-format clang-format-19 clang-format ""; do
  "${clang_format:-true}" --version 2>/dev/null | grep -q 'version 19\.' && break
done
[ -n "$clang_format" ] || { echo "clang-format 19 is missing; run: .venv/bin/pip install clang-format==19.1.7" >&2; exit 1; }
if [ "${1:-}" = --check ]; then mode=(--dry-run --Werror); else mode=(-i); fi
git ls-files -co --exclude-standard '*.h' '*.cc' | xargs "$clang_format" "${mode[@]}"
