# `pinfold doctor` reports that pinning works in the guest, on cgroup v2.
# vm: small large
source tests/vm/check.sh

report=$("$PINFOLD" doctor) || fail "doctor reports that pinning can't work in the guest: $report"
echo "$report"
grep -q "cgroup v2" <<<"$report" || fail "doctor does not report cgroup v2"
