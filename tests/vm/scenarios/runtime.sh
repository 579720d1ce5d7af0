# Real containerd and runc on cgroup v2: a container has its partition before its program begins.
#
# The tests are those with the agent (`pinned`), or the tests that PINFOLD_TEST_RUNTIME_ONLY names. Each test starts few
# containers, because a container takes seconds on emulated CPUs.
# vm: small 6.12
source tests/vm/check.sh

[[ -x ${PINFOLD_RUNTIME_TESTS:-} ]] || not_here "PINFOLD_RUNTIME_TESTS does not name a test program; tests/run sets the variable"
tools=${PINFOLD_TOOLS:-/var/cache/pinfold-tools}
export PINFOLD_KERNEL_TESTS=1 PINFOLD_TEST_PATIENCE=60 PINFOLD_TEST_CONTAINERS=${PINFOLD_VM_CONTAINERS:-4}
export PINFOLD_TEST_RUNTIMES=${PINFOLD_TEST_RUNTIMES:-sid}
# Threads of Go wait by spinning. One host thread emulates all CPUs, so a spinning thread delays all other threads.
export GOMAXPROCS=1

IFS=, read -ra suites <<<"$PINFOLD_TEST_RUNTIMES"
for name in probe "${suites[@]/#/containerd-}"; do
    [[ -e $tools/$name ]] || fail "$tools/$name is missing: run tests/runtime/prepare"
done

modprobe overlay
# shellcheck disable=SC2086 # each word is the name of a test
"$PINFOLD_RUNTIME_TESTS" --test-threads=1 --nocapture ${PINFOLD_TEST_RUNTIME_ONLY:-pinned::} | tee /tmp/tests ||
    fail "a test with the runtime failed (see above)"
# The test program also succeeds for a name that matches no test.
grep -q "^test result: ok. [1-9]" /tmp/tests || fail "no test ran: no test has a name with ${PINFOLD_TEST_RUNTIME_ONLY:-pinned::}"
