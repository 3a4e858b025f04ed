#!/usr/bin/env bash
# Starts a program with meshtorch-run and with torchrun: the sum is right, a rank that dies is named, and no process is left.
#   launchers.sh meshtorch-run|torchrun <program> <launcher command…>
set -uo pipefail
launcher=$1 program=$2
shift 2
command=("$@")
marker="launched-by-$$-$RANDOM"
output=$(mktemp)
marker_file=$(mktemp)
trap 'rm -f "$output" "$marker_file"' EXIT
printf '%s' "$marker" >"$marker_file"
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT

fail() {
  echo "FAILED: $launcher: $1"
  tail -n 60 "$output"
  exit 1
}

run() { timeout 120 "${command[@]}" "$program" "$marker" "$@" >"$output" 2>&1; }

left_over() { grep -slzF -f "$marker_file" /proc/[0-9]*/cmdline; }  # from a file, so that grep does not find itself

expect_none_left() {
  for _ in $(seq 100); do
    [ -z "$(left_over)" ] && return
    sleep 0.1
  done
  fail "processes were left: $(left_over)"
}

run || fail "the program failed with code $?"
for rank in 0 1 2 3; do
  grep -qF "rank $rank of 4, local $rank, shm: sum 10" "$output" || fail "rank $rank did not print the sum"
done
expect_none_left

# Without a CUDA device every rank says what is missing and what to do, in words.
run nccl || fail "the program that asks for nccl failed with code $?"
for rank in 0 1 2 3; do
  grep -qE "rank $rank: (joined|meshtorch: backend nccl (needs|was not built))" "$output" || fail "rank $rank did not say whether it has nccl"
done
[ "$(grep -cE 'rank .: joined|do: use shm or gloo' "$output")" = 4 ] || fail "a rank did not say what to do"
expect_none_left

run 2
code=$?
[ $code -ne 0 ] || fail "exit code 0 although rank 2 died"
[ $code -ne 124 ] || fail "did not end although rank 2 died"
case $launcher in
  meshtorch-run)
    [ $code -eq 7 ] || fail "exit code $code, not that of rank 2"
    grep -qE "meshtorch-run: rank 2 \(pid [0-9]+\) exited with code 7" "$output" || fail "rank 2 was not named"
    ;;
  torchrun) grep -qE "rank +: 2 \(local_rank: 2\)" "$output" || fail "rank 2 was not named" ;;
esac
expect_none_left
echo "$launcher: passed"
