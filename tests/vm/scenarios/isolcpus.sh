# Beside a kubelet that assigns CPUs isolated at boot: a set wholly of them becomes a partition of the kind `isolated`, and a set
# that has other CPUs, too, becomes none.
# vm: isolcpus 6.12
source tests/vm/check.sh

[[ -x ${PINFOLD_AGENT_TESTS:-} ]] || not_here "PINFOLD_AGENT_TESTS does not name a test program; tests/run sets the variable"
equal "CPUs isolated at boot" 6-7 "$(cat /sys/devices/system/cpu/isolated)"
export PINFOLD_KERNEL_TESTS=1 PINFOLD_PARTITION_TESTS=1 PINFOLD_TEST_PATIENCE=60
"$PINFOLD_AGENT_TESTS" --test-threads=1 cpus_isolated_at_boot || fail "a test of the agent failed (see above)"
