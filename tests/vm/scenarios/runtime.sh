# Real containerd and runc on cgroup v2: what the agent gives a container is its partition before its program begins. All
# scenarios with the agent, and few containers in each: one takes seconds on emulated CPUs. PINFOLD_TEST_RUNTIME_ONLY names the
# tests, where it is to be others.
# vm: small 6.12
source tests/vm/check.sh

[[ -x ${PINFOLD_RUNTIME_TESTS:-} ]] || not_here "PINFOLD_RUNTIME_TESTS names no program of tests: tests/run does"
tools=${PINFOLD_TOOLS:-/var/cache/pinfold-tools}
export PINFOLD_KERNEL_TESTS=1 PINFOLD_TEST_PATIENCE=60 PINFOLD_TEST_CONTAINERS=${PINFOLD_VM_CONTAINERS:-4}
export PINFOLD_TEST_RUNTIMES=${PINFOLD_TEST_RUNTIMES:-sid}
# Go's threads wait for each other by spinning; here all CPUs are emulated by one thread, and none gets on meanwhile.
export GOMAXPROCS=1

IFS=, read -ra suites <<<"$PINFOLD_TEST_RUNTIMES"
for name in probe "${suites[@]/#/containerd-}"; do
    [[ -e $tools/$name ]] || fail "no $name is prepared in $tools: run tests/runtime/prepare"
done

modprobe overlay
# shellcheck disable=SC2086 # names of tests, one a word
"$PINFOLD_RUNTIME_TESTS" --test-threads=1 --nocapture ${PINFOLD_TEST_RUNTIME_ONLY:-pinned::} | tee /tmp/tests ||
    fail "see above"
# A name that fits no test would pass, too.
grep -q "^test result: ok. [1-9]" /tmp/tests || fail "no test has run"
