# `pinfold doctor` reports that pinning works in the guest, and names the version of the cgroups.
# vm: small large v1
source tests/vm/check.sh

report=$("$PINFOLD" doctor) || fail "doctor reports that pinning can't work in the guest: $report"
echo "$report"
grep -q "cgroup $PINFOLD_VM_CGROUP" <<<"$report" || fail "doctor does not report cgroup $PINFOLD_VM_CGROUP"
