# Doctor finds that pinning can work here, on cgroup v2.
# vm: small large
source tests/vm/check.sh

report=$("$PINFOLD" doctor) || fail "doctor says that pinning can't work here: $report"
echo "$report"
grep -q "cgroup v2" <<<"$report" || fail "doctor does not say that this is cgroup v2"
