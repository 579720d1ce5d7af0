# The agent gives a training pod's container exclusive CPUs, and the kernel confirms the CPUs. The agent's death and restart
# change no CPUs. `pinfold release` restores the previous settings.
# vm: small large
source tests/vm/check.sh

cgroups=/sys/fs/cgroup
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
        for file in "$cgroups"/kubepods/{,besteffort/}pod*/{,*/}{cpuset.cpus,cpuset.cpus.effective,cpuset.cpus.partition,cpu.max}; do
            [[ ! -e $file ]] || echo "${file#"$cgroups/"}: $(<"$file")"
        done
    fi
    [[ -z $agent ]] || kill -KILL "$agent" || true
    ((${#processes[@]} == 0)) || kill -KILL "${processes[@]}" || true
    wait 2>/dev/null || true
    find "$cgroups/kubepods" -depth -type d -exec rmdir {} + || true
    rm -rf "$manifests"
}
trap cleanup EXIT

# Makes a cgroup whose children have the same controllers as with the kubelet.
parent() {
    mkdir "$cgroups/$1"
    echo "+cpuset +cpu +memory +pids" >"$cgroups/$1/cgroup.subtree_control"
}

# Makes a container's cgroup with a process.
container() {
    mkdir "$cgroups/$1"
    sleep 100000 &
    processes+=($!)
    echo $! >"$cgroups/$1/cgroup.procs"
}

effective() {
    cat "$cgroups/$1/cpuset.cpus.effective"
}

# Prints the CPUs on which the kernel allows the first process of a cgroup to run.
allowed() {
    awk '$1 == "Cpus_allowed_list:" { print $2 }' "/proc/$(head -n 1 "$cgroups/$1/cgroup.procs")/status"
}

# Prints all settings that an agent could change.
state() {
    local path
    for path in "$owner" "$neighbour" "$late" "${owner%/*}" "${neighbour%/*}" kubepods; do
        echo "$path $(effective "$path") $(cat "$cgroups/$path/cpuset.cpus") $(cat "$cgroups/$path/cpu.max")"
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

echo "+cpuset +cpu +memory +pids" >"$cgroups/cgroup.subtree_control"
parent kubepods
parent kubepods/besteffort
parent "${owner%/*}"
parent "${neighbour%/*}"
echo "200000 100000" >"$cgroups/${owner%/*}/cpu.max"
container "$owner"
echo "200000 100000" >"$cgroups/$owner/cpu.max"
container "$neighbour"
equal "the worker's CPUs before the agent's start" "$online" "$(effective "$owner")"

start_agent
within 60 "the agent is ready" ready
enforcement=$(status enforcement)
echo "enforcement: $enforcement"
within 30 "the worker runs on 2 CPUs" runs_on "$owner" 2
within 30 "the neighbour has left the worker's CPUs" apart "$owner" "$neighbour"
owned=$(effective "$owner")
echo "the worker owns $owned, the neighbour runs on $(effective "$neighbour")"
equal "reserved CPUs that the worker owns" "" "$(common "$owned" "$reserved")"
equal "the allowed CPUs of the worker's process" "$owned" "$(allowed "$owner")"
equal "CPUs that both processes may use" "" "$(common "$owned" "$(allowed "$neighbour")")"
equal "the number of CPUs of the worker and the neighbour" "$(expand "$online" | wc -l)" "$(expand "$owned,$(effective "$neighbour")" | sort -u | wc -l)"
within 30 "the worker's quota is lifted" grep -q "^max " "$cgroups/$owner/cpu.max"
within 30 "the quota of the worker's pod is lifted" grep -q "^max " "$cgroups/${owner%/*}/cpu.max"

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
equal "the worker's quota after release" "200000 100000" "$(<"$cgroups/$owner/cpu.max")"
equal "the quota of the worker's pod after release" "200000 100000" "$(<"$cgroups/${owner%/*}/cpu.max")"
equal "the output of a second release" "nothing is pinned here" "$("$PINFOLD" release)"
