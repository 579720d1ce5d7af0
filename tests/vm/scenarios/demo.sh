# The demo measures both ways, gives no CPU to two pods, keeps a neighbor off an exclusive CPU, and leaves no cgroup and no network
# link behind.
# vm: small
source tests/vm/check.sh

# Prints all cgroups and network links, for a comparison of before and after.
left() {
    find /sys/fs/cgroup -type d | sort
    ip -o link | awk '{ print $2 }'
}

before=$(left)
output=$("$PINFOLD" demo --seconds 2 -o json) || fail "the demo's exit code is $?: $output"
report=$(tail -n 1 <<<"$output")
# The demo measures each slice until the first step, for at most two minutes. The two slices are enough for the proof.
wrong=$(jq -r '
    (("enforcement", "seconds", "shared", "pinned", "pods", "compared", "neighbors", "proof") as $key | select(.[$key] == null) | "the report has no \($key)"),
    (select(.enforcement != "partition" and .enforcement != "cpuset") | "the demo did not pin the pods: enforcement is \(.enforcement)"),
    (select(.pods | length == 0) | "the report names no pods"),
    (.problems[] | "the demo had a problem: \(.)"),
    (("shared", "pinned") as $way | select(.[$way].steps_per_second > 0 | not) | "the \($way) slices had no step within two minutes")
    ' <<<"$report") || fail "the last line is not JSON: $report"
echo "$report"
[[ -z $wrong ]] || fail "$wrong"
owned=$(jq -r '.pods[] | select(.exclusive) | .cpus' <<<"$report" | while read -r cpus; do expand "$cpus"; done)
[[ -n $owned ]] || fail "no pod of the demo owned CPUs"
equal "CPUs that two pods of the demo owned" "" "$(sort <<<"$owned" | uniq -d)"
# With a partition, the kernel itself keeps the CPU from a neighbor that widens its own CPU set.
expected=repaired
[[ $(jq -r .enforcement <<<"$report") != partition ]] || expected=without_effect
equal "a neighbor that asks for an exclusive CPU is" refused "$(jq -r '.proof.attempts[0].outcome.name' <<<"$report")"
equal "a neighbor's write to its CPU set is" "$expected" "$(jq -r '.proof.attempts[1].outcome.name' <<<"$report")"
equal "cgroups and links that the demo left behind" "" "$(diff <(echo "$before") <(left) || true)"
