# Real containerd and runc behind pinfold-runtime on cgroup v2: a container of a `required` pod starts in its partition or not
# at all, while the agent is killed, stopped or absent.
# vm: small 6.12
export PINFOLD_TEST_RUNTIME_ONLY=required:: PINFOLD_TEST_STARTS=2
source tests/vm/scenarios/runtime.sh
