# The demo shows a difference that it measured here, and leaves nothing behind.
# vm: small
source tests/vm/check.sh

# The cgroups and links there are, to be compared with those afterwards.
left() {
    find /sys/fs/cgroup -type d | sort
    ip -o link | awk '{ print $2 }'
}

before=$(left)
output=$("$PINFOLD" demo --seconds 10 -o json) || fail "demo ended with $?: $output"
report=$(tail -n 1 <<<"$output")
# A half is measured until it has seen a step, for two minutes if need be.
wrong=$(jq -r '
    (("enforcement", "seconds", "shared", "pinned", "pods") as $key | select(.[$key] == null) | "the report has no \($key)"),
    (select(.enforcement != "partition" and .enforcement != "cpuset") | "nothing was enforced: \(.enforcement)"),
    (select(.pods | length == 0) | "the report names no pods"),
    (("shared", "pinned") as $half | select(.[$half].steps_per_second > 0 | not) | "no step was made in the \($half) half within two minutes")
    ' <<<"$report") || fail "the last line is not JSON: $report"
echo "$report"
[[ -z $wrong ]] || fail "$wrong"
owned=$(jq -r '.pods[] | select(.exclusive) | .cpus' <<<"$report" | while read -r cpus; do expand "$cpus"; done)
[[ -n $owned ]] || fail "no pod of the demo owned CPUs"
equal "CPUs that two pods of the demo owned" "" "$(sort <<<"$owned" | uniq -d)"
equal "what the demo left behind" "" "$(diff <(echo "$before") <(left) || true)"
