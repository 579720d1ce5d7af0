# Runs the tests of the agent on this kernel: kills, hostile writers, many short-lived pods, and the behaviour that the
# agent must preserve, live files, and records. Kernels with partitions also run the tests of partitions.
# vm: small v1
source tests/vm/check.sh

[[ -x ${PINFOLD_AGENT_TESTS:-} ]] || not_here "PINFOLD_AGENT_TESTS does not name a test program; tests/run sets the variable"
export PINFOLD_KERNEL_TESTS=1 PINFOLD_TEST_PATIENCE=60
export PINFOLD_TEST_KILLS=${PINFOLD_TEST_KILLS:-6} PINFOLD_TEST_HOSTILE_SECONDS=${PINFOLD_TEST_HOSTILE_SECONDS:-10}
export PINFOLD_TEST_LIFETIMES=${PINFOLD_TEST_LIFETIMES:-100}

tests=(endurance reconciler:: records)
# Live files depend on the version of cgroups, and not on the kernel, so two guests are enough.
[[ $PINFOLD_VM_CGROUP == v2 && $(uname -r) != 6.12.* ]] || tests+=(live_files)
if [[ $PINFOLD_VM_CGROUP == v2 ]]; then
    mkdir /sys/fs/cgroup/probe
    echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control
    if [[ -e /sys/fs/cgroup/probe/cpuset.cpus.exclusive ]]; then
        export PINFOLD_PARTITION_TESTS=1
        tests+=(partition)
    fi
    rmdir /sys/fs/cgroup/probe
else
    # These need several CPUs, and one test takes CPUs offline.
    export PINFOLD_HOTPLUG_TESTS=1
    tests+=(nested offer refused)
fi
"$PINFOLD_AGENT_TESTS" --test-threads=1 "${tests[@]}" || fail "a test of the agent failed (see above)"
