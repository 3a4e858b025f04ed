#!/usr/bin/env bash
# Runs one reader under libFuzzer: run.sh BINARY READER. The kept corpus is read, and what is found beyond it is thrown away;
# FUZZ_RUNS and FUZZ_SEED (0: another each time) give other numbers, FUZZ_FOUND a directory in which what is found stays.
set -euo pipefail
binary=$1 reader=$2
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
found=${FUZZ_FOUND:+$FUZZ_FOUND/$reader}
found=${found:-$scratch}
mkdir -p "$found"
# An input that breaks a reader is kept in the directory of the call, and printed.
MESHTORCH_FUZZ=$reader "$binary" -runs="${FUZZ_RUNS:-2000}" -seed="${FUZZ_SEED:-1}" -dict="$here/words.dict" -max_len=4096 \
  -print_funcs=0 -print_final_stats=1 -artifact_prefix="broken_${reader}_" "$found" "$here/corpus/$reader"
