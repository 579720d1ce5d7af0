# The agent gives a training pod's container exclusive CPUs, and the kernel confirms the CPUs. The agent's death and restart
# change no CPUs. `pinfold release` restores the previous settings.
# vm: small large v1
source tests/vm/check.sh

version=v2
cgroups=/sys/fs/cgroup
# The hierarchies that need a container's cgroups, and the one with the quotas.
hierarchies=("$cgroups")
quotas=$cgroups
if [[ -e $cgroups/cpuset/cpuset.cpus ]]; then
    version=v1
    hierarchies=("$cgroups"/{cpuset,cpu,cpuacct,memory,pids})
    quotas=$cgroups/cpu
    cgroups=$cgroups/cpuset
fi
training=8f0d6986-3554-402b-8223-2d69f320df15
other=0b9e2f6c-51a7-4c43-9d0e-6f1f6a3c7d21
reserved=0-1
online=$(</sys/devices/system/cpu/online)
owner=kubepods/pod$training/c0ffee
neighbour=kubepods/besteffort/pod$other/decade
late=kubepods/besteffort/pod$other/facade
manifests=$(mktemp -d)
log=$manifests/agent.log
agent=
processes=()

cleanup() {
    local code=$?
    if ((code)) && [[ -s $log ]]; then
        echo "the agent's log:"
        cat "$log"
        for file in {"$cgroups","$quotas"}/kubepods/{,besteffort/}pod*/{,*/}{cpuset.cpus,cpuset.{cpus.effective,effective_cpus,cpus.partition},cpu.{max,cfs_quota_us}}; do
            [[ ! -e $file ]] || echo "$file: $(<"$file")"
        done | uniq
    fi
    [[ -z $agent ]] || kill -KILL "$agent" || true
    ((${#processes[@]} == 0)) || kill -KILL "${processes[@]}" || true
    wait 2>/dev/null || true
    find "${hierarchies[@]/%//kubepods}" -depth -type d -exec rmdir {} + || true
    rm -rf "$manifests"
}
trap cleanup EXIT

# Makes a cgroup. On cgroup v1 a new cgroup has no CPUs and no memory nodes, so that it gets those of the cgroup above, as the
# runtime does it.
make() {
    local hierarchy file
    for hierarchy in "${hierarchies[@]}"; do mkdir "$hierarchy/$1"; done
    [[ $version == v1 ]] || return 0
    for file in cpuset.cpus cpuset.mems; do cat "$cgroups/$(dirname "$1")/$file" >"$cgroups/$1/$file"; done
}

# Makes a cgroup whose children have the same controllers as with the kubelet.
parent() {
    make "$1"
    [[ $version == v1 ]] || echo "+cpuset +cpu +memory +pids" >"$cgroups/$1/cgroup.subtree_control"
}

# Makes a container's cgroup with a process.
container() {
    local hierarchy
    make "$1"
    sleep 100000 &
    processes+=($!)
    for hierarchy in "${hierarchies[@]}"; do echo $! >"$hierarchy/$1/cgroup.procs"; done
}

effective() {
    case $version in
    v1) cat "$cgroups/$1/cpuset.effective_cpus" ;;
    v2) cat "$cgroups/$1/cpuset.cpus.effective" ;;
    esac
}

# Prints a cgroup's limit of CPU time as cgroup v2 writes it: `max 100000`, or `200000 100000`.
quota() {
    local limit period
    if [[ $version == v1 ]]; then
        limit=$(<"$quotas/$1/cpu.cfs_quota_us") period=$(<"$quotas/$1/cpu.cfs_period_us")
        [[ $limit != -1 ]] || limit=max
        echo "$limit $period"
    else
        cat "$quotas/$1/cpu.max"
    fi
}

# Limits a cgroup to the time of two CPUs.
limit_to_two_cpus() {
    case $version in
    v1) echo 200000 >"$quotas/$1/cpu.cfs_quota_us" ;;
    v2) echo "200000 100000" >"$quotas/$1/cpu.max" ;;
    esac
}

unlimited() {
    [[ $(quota "$1") == "max "* ]]
}

# Prints the CPUs on which the kernel allows the first process of a cgroup to run.
allowed() {
    awk '$1 == "Cpus_allowed_list:" { print $2 }' "/proc/$(head -n 1 "$cgroups/$1/cgroup.procs")/status"
}

# Prints all settings that an agent could change.
state() {
    local path
    for path in "$owner" "$neighbour" "$late" "${owner%/*}" "${neighbour%/*}" kubepods; do
        echo "$path $(effective "$path") $(cat "$cgroups/$path/cpuset.cpus") $(quota "$path")"
    done
}

start_agent() {
    "$PINFOLD" run --manifest-dir "$manifests" --reserved "$reserved" --reconcile-interval 1s --listen 127.0.0.1:9470 2>>"$log" &
    agent=$!
}

ready() {
    kill -0 "$agent" 2>/dev/null || fail "the agent ended early"
    http_get /readyz >/dev/null
}

# runs_on CGROUP N: whether the cgroup has N effective CPUs.
runs_on() {
    [[ $(expand "$(effective "$1")" | wc -l) == "$2" ]]
}

# Whether two cgroups have no common effective CPU.
apart() {
    [[ -z $(common "$(effective "$1")" "$(effective "$2")") ]]
}

cat >"$manifests/worker.yaml" <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: mnist-worker-0
  namespace: training
  uid: $training
  labels:
    training.kubeflow.org/replica-type: worker
spec:
  containers:
    - name: tensorflow
      image: example/train
      resources:
        requests: { cpu: "2", memory: 256Mi }
        limits: { cpu: "2", memory: 256Mi }
YAML
cat >"$manifests/batch.yaml" <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: batch
  namespace: default
  uid: $other
spec:
  containers:
    - name: main
      image: example/batch
    - name: second
      image: example/batch
YAML

[[ $version == v1 ]] || echo "+cpuset +cpu +memory +pids" >"$cgroups/cgroup.subtree_control"
parent kubepods
parent kubepods/besteffort
parent "${owner%/*}"
parent "${neighbour%/*}"
limit_to_two_cpus "${owner%/*}"
container "$owner"
limit_to_two_cpus "$owner"
container "$neighbour"
equal "the worker's CPUs before the agent's start" "$online" "$(effective "$owner")"

start_agent
within 60 "the agent is ready" ready
enforcement=$(status enforcement)
echo "cgroup $version, enforcement: $enforcement"
within 30 "the worker runs on 2 CPUs" runs_on "$owner" 2
within 30 "the neighbour has left the worker's CPUs" apart "$owner" "$neighbour"
owned=$(effective "$owner")
echo "the worker owns $owned, the neighbour runs on $(effective "$neighbour")"
equal "reserved CPUs that the worker owns" "" "$(common "$owned" "$reserved")"
equal "the allowed CPUs of the worker's process" "$owned" "$(allowed "$owner")"
equal "CPUs that both processes may use" "" "$(common "$owned" "$(allowed "$neighbour")")"
equal "the number of CPUs of the worker and the neighbour" "$(expand "$online" | wc -l)" "$(expand "$owned,$(effective "$neighbour")" | sort -u | wc -l)"
within 30 "the worker's quota is lifted" unlimited "$owner"
within 30 "the quota of the worker's pod is lifted" unlimited "${owner%/*}"

if [[ $enforcement == partition ]]; then
    equal "the worker's partition" root "$(<"$cgroups/$owner/cpuset.cpus.partition")"
    equal "the worker's CPUs that a process outside the pods may use" "" \
        "$(common "$owned" "$(awk '$1 == "Cpus_allowed_list:" { print $2 }' /proc/self/status)")"
fi

container "$late"
within 30 "a later container does not run on the worker's CPUs" apart "$owner" "$late"

goes_on 3
before=$(state)
kill -KILL "$agent"
wait "$agent" 2>/dev/null || true
agent=
equal "changes by the agent's death" "" "$(diff <(echo "$before") <(state) || true)"
start_agent
within 60 "the agent is ready again" ready
goes_on 3
equal "changes by the agent's restart" "" "$(diff <(echo "$before") <(state) || true)"

kill -TERM "$agent"
wait "$agent" || fail "the agent's exit code after SIGTERM is $?"
agent=
equal "changes by the agent's end after SIGTERM" "" "$(diff <(echo "$before") <(state) || true)"

"$PINFOLD" release
for path in "$owner" "$neighbour" "$late"; do
    equal "CPUs of $path after release" "$online" "$(effective "$path")"
done
equal "the worker's quota after release" "200000 100000" "$(quota "$owner")"
equal "the quota of the worker's pod after release" "200000 100000" "$(quota "${owner%/*}")"
equal "the output of a second release" "nothing is pinned here" "$("$PINFOLD" release)"
