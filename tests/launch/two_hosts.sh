#!/usr/bin/env bash
# Two hosts, as far as processes can tell: namespaces of network, processes and host names, joined by a link of their own. Ranks of both
# train together; a rank of one host calls something else; the link is cut; a host is lost: every host that is left names ranks of the
# other, and none hangs.
#   two_hosts.sh <meshtorch-run> <program>
set -uo pipefail
launcher=$1 program=$2
PATH=$PATH:/usr/sbin:/sbin
a=mt$$a b=mt$$b work=$(mktemp -d)
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT MESHTORCH_SECRET

clean_up() {
  jobs -p | xargs -r kill -9 2>/dev/null
  ip netns del $a 2>/dev/null
  ip netns del $b 2>/dev/null
  rm -rf "$work"
}
trap clean_up EXIT
not_here() {
  echo "not tested: $1 is not permitted here"
  exit 77
}
fail() {
  echo "FAILED: $1"
  tail -n 40 "$work"/*.log
  exit 1
}

command -v ip >/dev/null || not_here "ip (iproute2)"
ip netns add $a 2>/dev/null && ip netns add $b 2>/dev/null || not_here "a network namespace"
ip -n $a link add mt0 type veth peer name mt0 netns $b 2>/dev/null || not_here "a pair of virtual interfaces"
for host in "$a 10.77.0.1" "$b 10.77.0.2"; do
  set -- $host
  ip -n $1 addr add $2/24 dev mt0 && ip -n $1 link set mt0 up && ip -n $1 link set lo up || not_here "an address"
done

# A host of its own: node number, namespace, steps. Both share the secret of the run, which the user gives.
start() {
  MESHTORCH_SECRET=of-this-run-$$ GLOO_SOCKET_IFNAME=mt0 OMP_NUM_THREADS=1 ip netns exec $2 \
    unshare --pid --fork --kill-child --mount-proc --uts sh -c "hostname host-$1; exec \"\$@\"" host \
    "$launcher" -n 2 --nnodes 2 --node-rank $1 --master-addr 10.77.0.1 --master-port 29511 --timeout 60 "$program" $3 \
    >"$work/$1.log" 2>&1 &
}
await() {  # words in a log, for a minute
  for _ in $(seq 600); do
    grep -q "$2" "$work/$1.log" && return
    sleep 0.1
  done
  fail "host $1 never said \"$2\""
}

start 0 $a 20
start 1 $b 20
wait
[ "$(grep -h 'loss ' "$work"/*.log | wc -l)" = 4 ] || fail "not all ranks trained"
[ "$(grep -ho 'loss .*' "$work"/*.log | sort -u | wc -l)" = 1 ] || fail "the ranks have different losses"

start 0 $a differ
start 1 $b differ
wait
differ="differ: .*rank 0: all_reduce(Float\[4\], sum).*rank 3: all_gather_into_tensor(Float\[4\])"
[ "$(grep -h "$differ" "$work"/*.log | wc -l)" = 4 ] || fail "not all ranks were told that rank 3 called something else"
[ "$(grep -ho 'differ: .*' "$work"/*.log | sort -u | wc -l)" = 1 ] || fail "the ranks were told different things"
[ "$(grep -h 'sum 4$' "$work"/*.log | wc -l)" = 4 ] || fail "the ranks did not go on after they differed"

start 0 $a 100000000
start 1 $b 100000000
await 0 "rank 0 of 4 on gloo trains"
await 1 "rank 2 of 4 on gloo trains"
ip -n $b link set mt0 down
wait
grep -qE "rank [23] on host-1 \(10.77.0.2\)" "$work/0.log" || fail "host 0 does not name ranks of host 1 when the link is cut"
grep -qE "rank [01] on host-0 \(10.77.0.1\)" "$work/1.log" || fail "host 1 does not name ranks of host 0 when the link is cut"
ip -n $b link set mt0 up

start 0 $a 100000000
start 1 $b 100000000
lost=$!
await 0 "rank 0 of 4 on gloo trains"
kill -9 $lost
wait
grep -qE "rank [23] on host-1 \(10.77.0.2\)" "$work/0.log" || fail "host 0 does not name ranks of the host that was lost"
echo "two hosts train, differ, lose their link, and lose each other"
