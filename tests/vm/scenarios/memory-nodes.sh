# Memory follows CPUs on machines whose NUMA nodes have only CPUs or only memory: nothing is written that the kernel refuses,
# memory without CPUs stays allowed, and pinfold.io/memory: free takes effect on a running pod.
# vm: hbm memoryless 6.1
source tests/vm/check.sh

uid=00000001-0000-4000-8000-000000000000
id=$(printf '%064d' 1)
owner=kubepods/pod$uid/$id

# Makes the owner's cgroups on cgroup v2, or on cgroup v1 instead of the guest's cgroup v2.
cgroups_v2() {
    files=/sys/fs/cgroup
    mkdir -p "$files/$owner"
    for parent in "" kubepods "kubepods/pod$uid"; do
        echo "+cpuset +cpu +memory" >"$files/$parent/cgroup.subtree_control"
    done
}
cgroups_v1() {
    umount /sys/fs/cgroup
    mount -t tmpfs cgroups /sys/fs/cgroup
    for controller in cpuset cpu; do
        mkdir -p "/sys/fs/cgroup/$controller"
        mount -t cgroup -o "$controller" "$controller" "/sys/fs/cgroup/$controller"
        mkdir -p "/sys/fs/cgroup/$controller/$owner"
    done
    files=/sys/fs/cgroup/cpuset
    for parent in kubepods "kubepods/pod$uid" "$owner"; do
        cat "$files/cpuset.cpus" >"$files/$parent/cpuset.cpus"
        cat "$files/cpuset.mems" >"$files/$parent/cpuset.mems"
    done
}

# pod CPUS MEMORY: describes the pod with the annotation pinfold.io/memory.
mkdir -p /tmp/pods
pod() {
    cat >/tmp/pods/.wide <<POD
apiVersion: v1
kind: Pod
metadata:
  {name: wide, namespace: lab, uid: $uid, annotations: {pinfold.io/cpus: exclusive, pinfold.io/memory: $2}}
spec: {containers: [{name: main, image: i, resources: {limits: {cpu: "$1", memory: 64Mi}}}]}
status: {phase: Running, containerStatuses: [{name: main, containerID: "containerd://$id", state: {running: {}}}]}
POD
    mv /tmp/pods/.wide /tmp/pods/wide.yaml
}

have() { cat "$files/$owner/$1"; }
owns() { [[ $(have cpuset.cpus) == "$1" || $(cat "$files/$owner/cpuset.cpus.effective" 2>/dev/null) == "$1" ]]; }
allowed() { sed -n 's/^Mems_allowed_list:\t//p' "/proc/$program/status"; }
is_bound() { [[ $(have cpuset.mems) == "$1" ]]; }

# follow CPUS PLACED NODES: the pod with this number of CPUs gets the CPUs PLACED, and its program the memory of NODES.
follow() {
    pod "$1" follow
    "$PINFOLD" run --manifest-dir /tmp/pods --api never --nri never --reconcile-interval 1s >/tmp/agent.log 2>&1 &
    agent=$!
    within 120 "the owner's CPUs" owns "$2"
    goes_on 3
    equal "NUMA nodes of the owner's program" "$3" "$(allowed)"
    equal "errors and warnings of the agent" "" "$(grep -E 'ERROR|WARN' /tmp/agent.log || true)"
}

case ${PINFOLD_VM_MACHINE:?} in
hbm)
    cgroups_v2
    sleep 100000 &
    program=$!
    echo $program >"$files/$owner/cgroup.procs"
    follow 4 4-7 0-1
    equal "the line of explain" "  memory   from NUMA nodes 0-1" "$("$PINFOLD" explain lab/wide | grep memory)"
    pod 4 free
    goes_on 3
    equal "NUMA nodes with pinfold.io/memory: free" "0-1" "$(allowed)"
    ;;
memoryless)
    cgroups_v1
    sleep 100000 &
    program=$!
    echo $program >"$files/$owner/cgroup.procs"
    follow 6 2-7 0
    is_bound 0 || fail "cpuset.mems of the owner: $(have cpuset.mems)"
    ;;
*) fail "no machine $PINFOLD_VM_MACHINE" ;;
esac
kill "$agent" "$program"
wait || true
