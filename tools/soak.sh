#!/usr/bin/env bash
# The property test with one seed after another for some minutes: soak.sh [MINUTES [BUILD [FIRST_SEED]]]. What fails is printed, and
# makes the exit code 1.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:-60} build=${2:-build/release} seed=${3:-2}
end=$((SECONDS + minutes * 60))
log=$(mktemp)
trap 'rm -f "$log" "$log.trace"' EXIT
failed=0
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive MESHTORCH_PROPERTY_CASES=${MESHTORCH_PROPERTY_CASES:-4} MESHTORCH_PROPERTY_TRACE=$log.trace
for (( ; SECONDS < end; ++seed)); do
  rm -f "$log.trace"
  if MESHTORCH_PROPERTY_SEED=$seed "$build/tests/property_tests" --gtest_filter='Property.Every*' >"$log" 2>&1; then
    echo "seed $seed: $(grep 'calls right' "$log")"
  elif grep -q 'calls right' "$log"; then
    failed=1
    echo "seed $seed: $(grep 'calls right' "$log")"
    grep -A 6 ': Failure' "$log"
  else
    failed=1
    echo "seed $seed: ended in the middle; the last call was: $(tail -n 1 "$log.trace")"
  fi
done
exit $failed
