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
jq . <<<"$report" || fail "the last line is not JSON: $report"
for key in enforcement seconds shared pinned pods; do
    jq -e "has(\"$key\") and .$key != null" <<<"$report" >/dev/null || fail "the report has no $key"
done
jq -e '.enforcement == "partition" or .enforcement == "cpuset"' <<<"$report" >/dev/null ||
    fail "nothing was enforced: $(jq -c .enforcement <<<"$report")"
jq -e '.pods | length > 0' <<<"$report" >/dev/null || fail "the report names no pods"
# A half is measured until it has seen a step, for two minutes if need be.
for half in shared pinned; do
    jq -e --arg half $half '.[$half].steps_per_second > 0' <<<"$report" >/dev/null ||
        fail "no step was made in the $half half within two minutes"
done
owned=$(jq -r '.pods[] | select(.exclusive) | .cpus' <<<"$report" | while read -r cpus; do expand "$cpus"; done)
[[ -n $owned ]] || fail "no pod of the demo owned CPUs"
equal "CPUs that two pods of the demo owned" "" "$(sort <<<"$owned" | uniq -d)"
equal "what the demo left behind" "" "$(diff <(echo "$before") <(left) || true)"
