#!/usr/bin/env bash
# Formats all C++ sources, or with --check reports those that are not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."
clang_format=$(command -v clang-format || echo .venv/bin/clang-format)
[ -x "$clang_format" ] || { echo "clang-format is missing; run: pip install clang-format==19.1.7" >&2; exit 1; }
if [ "${1:-}" = --check ]; then mode=(--dry-run --Werror); else mode=(-i); fi
git ls-files -co --exclude-standard '*.h' '*.cc' | xargs "$clang_format" "${mode[@]}"
