# The agent where systemd owns the cgroup tree, as on a node with a kubelet. Pods are slices, and containers are scopes of
# runc or crun. Assignments survive changes by systemd. A sandbox with the owner's CPUs causes no lost CPU. `pinfold release`
# restores the previous settings.
#
# Each enforcement and each runtime's tree is tested on at least one kernel. PINFOLD_TEST_ALL=1 tests all combinations on
# every kernel, which takes ten more minutes.
# vm: small systemd
source tests/vm/check.sh
source tests/vm/cpuset.sh
source tests/vm/systemd.sh

training=8f0d6986-3554-402b-8223-2d69f320df15
batch=0b9e2f6c-51a7-4c43-9d0e-6f1f6a3c7d21
reserved=0-1
pod=kubepods.slice/kubepods-pod${training//-/_}.slice
owner=$pod/cri-containerd-c0ffee.scope
sandbox=$pod/cri-containerd-decade.scope
class=kubepods.slice/kubepods-besteffort.slice
other_pod=$class/kubepods-besteffort-pod${batch//-/_}.slice
other=$other_pod/cri-containerd-facade.scope
units=(kubepods.slice "$pod" "$owner" "$sandbox" "$class" "$other_pod" "$other")
outside=(init.scope system.slice user.slice)
manifests=$(mktemp -d)
log=$manifests/agent.log
agent=

finish() {
    local code=$? path
    if ((code)); then
        echo "the agent's log:"
        grep -v effective "$log" || true
        for path in "${units[@]}"; do
            echo "$path: $(grep -s . "$cgroups/$path"/{cpuset.cpus,cpuset.cpus.exclusive,cpuset.cpus.partition,cpuset.cpus.effective,cpu.max} | sed 's|.*/||' | tr '\n' ' ')"
        done
    fi
    [[ -z $agent ]] || kill -KILL "$agent" || true
    for path in "$owner" "$sandbox" "$other"; do systemctl stop "$(basename "$path")" || true; done
    systemctl stop kubepods.slice || true
    rm -rf "$manifests"
}
trap finish EXIT

# --- the node ---

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
status:
  containerStatuses:
    - name: tensorflow
      containerID: containerd://c0ffee
      image: example/train
      imageID: ""
      ready: true
      restartCount: 0
YAML
cat >"$manifests/batch.yaml" <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: batch
  namespace: default
  uid: $batch
spec:
  containers:
    - name: main
      image: example/batch
YAML

quota=(CPUQuotaPerSecUSec t 2000000)

# pods runc|crun: makes both pods anew. With crun, the processes are in a cgroup below the scope.
pods() {
    local process
    [[ ! -d $cgroups/$pod ]] || {
        for path in "$owner" "$sandbox" "$other"; do ended "$path"; done
        ended "$pod"
        ended "$other_pod"
    }
    slice "$pod" "${quota[@]}"
    slice "$other_pod"
    scope "$sandbox"
    scope "$owner" yes "${quota[@]}"
    scope "$other"
    [[ $1 == crun ]] || return 0
    process=$(have "$owner" cgroup.procs)
    mkdir "$cgroups/$owner/container"
    echo "$process" >"$cgroups/$owner/container/cgroup.procs"
    echo "+cpuset +cpu" >"$cgroups/$owner/cgroup.subtree_control"
}

# Prints the CPUs on which the kernel allows the owner's process to run.
running() {
    if [[ -d $cgroups/$owner/container ]]; then allowed_in "$owner/container"; else allowed_in "$owner"; fi
}

# Prints a unit's AllowedCPUs in systemd.
given() { systemctl show -P AllowedCPUs "$(basename "$1")" | tr ' ' ','; }
# Prints a unit's AllowedMemoryNodes in systemd.
remembered() { systemctl show -P AllowedMemoryNodes "$(basename "$1")" | tr ' ' ','; }

# --- the agent ---

start_agent() {
    PINFOLD_LOG_LEVEL=pinfold=debug "$PINFOLD" run --manifest-dir "$manifests" --reserved "$reserved" --reconcile-interval 1s \
        --listen 127.0.0.1:9470 "${options[@]}" 2>>"$log" &
    agent=$!
    within 60 "the agent is ready" ready
}

ready() {
    kill -0 "$agent" 2>/dev/null || fail "the agent ended early"
    http_get /readyz >/dev/null
}

# Kills the agent with SIGKILL.
killed() {
    kill -KILL "$agent"
    wait "$agent" 2>/dev/null || true
    agent=
}

# Ends the agent with SIGTERM.
terminated() {
    kill -TERM "$agent"
    wait "$agent" || fail "the agent's exit code after SIGTERM is $?"
    agent=
}

# Prints all settings that an agent could change.
state() {
    local path file
    for path in "${units[@]}" "${outside[@]}"; do
        for file in cpuset.mems cpuset.cpus cpuset.cpus.exclusive cpuset.cpus.partition cpuset.cpus.effective cpu.max; do
            [[ ! -e $cgroups/$path/$file ]] || echo "$path $file: $(<"$cgroups/$path/$file")"
        done
        [[ $path != *.scope ]] || echo "$path AllowedCPUs: $(given "$path"), AllowedMemoryNodes: $(remembered "$path")"
    done
}

# writes_since N: prints the number of writes to the owner's cgroup in the agent's log after line N.
writes_since() { tail -n +$(($1 + 1)) "$log" | grep -c "$owner: \(root\|member\|CPUs\|exclusive\)" || true; }
lines() { wc -l <"$log"; }

# runs_on CGROUP N: whether the cgroup has N effective CPUs.
runs_on() { [[ $(expand "$(effective "$1")" | wc -l) == "$2" ]]; }
# Prints the NUMA nodes of a list of CPUs.
nodes_of() {
    local node marked=()
    for node in /sys/devices/system/node/node[0-9]*; do
        [[ -z $(within_both "$(<"$node/cpulist")" "$1") ]] || marked[${node##*/node}]=yes
    done
    marks
}
# Whether the owner's memory is bound to the NUMA nodes of its CPUs, in the cgroup and in systemd. systemd would overwrite a
# value that only the cgroup has.
bound() {
    local nodes
    nodes=$(nodes_of "$owned")
    [[ $(have "$owner" cpuset.mems.effective) == "$nodes" && $(remembered "$owner") == "$nodes" ]]
}
# Whether a cgroup has no CPU quota.
unlimited() { [[ $(have "$1" cpu.max) == max* ]]; }
# is_given PATH LIST: whether systemd's AllowedCPUs of the unit and its effective CPUs are the list.
is_given() { [[ $(given "$1") == "$2" && $(effective "$1") == "$2" ]]; }
# Whether the sandbox's AllowedCPUs in systemd have no CPU of the owner, and the sandbox's process runs on the effective CPUs.
is_given_apart() { [[ -z $(within_both "$(given "$sandbox")" "$owned") && $(effective "$sandbox") == "$(allowed_in "$sandbox")" ]]; }
# Whether the owner's partition has the owned CPUs, and the sandbox's cpuset.cpus has none of the owned CPUs.
in_order() { [[ $(force "$owner") == "root: $owned" && -z $(within_both "$(have "$sandbox" cpuset.cpus)" "$owned") ]]; }

# survives SUBJECT COMMAND…: runs the command. Checks that the owner keeps its CPUs, and that the agent writes nothing to the
# owner's cgroup.
survives() {
    local what=$1 from
    from=$(lines)
    shift
    "$@" >/dev/null
    written
    sleep 1.2
    fact "after $what" "$standing, 0 writes" "$(standing), $(writes_since "$from") writes"
}

# Prints the owner's CPUs as systemd, the cgroup and the process have them.
standing() {
    if [[ $mode == partition ]]; then
        echo "$(force "$owner"), process $(running)"
    else
        echo "AllowedCPUs $(given "$owner"), effective $(effective "$owner"), process $(running)"
    fi
}

# limited SUBJECT PATH COMMAND…: runs a command after which systemd writes the unit's quota again. Checks that the agent lifts
# the quota again, and that the owner's NUMA nodes stay.
limited() {
    local what=$1 path=$2
    shift 2
    survives "$what" "$@"
    bound || fact "the owner's memory after $what" bound "$(have "$owner" cpuset.mems), and systemd knows $(remembered "$owner")"
    within 30 "the quota of ${path##*/} is lifted again" unlimited "$path"
}

systemd_goes_on() {
    survives "daemon-reload" systemctl daemon-reload
    survives "daemon-reexec" systemctl daemon-reexec
    survives "starts and stops of other units" units_come_and_go "$other_pod"
    limited "CPUWeight on the scope" "$owner" property "$owner" CPUWeight=50
    limited "CPUWeight on the pod's slice" "$pod" property "$pod" CPUWeight=50
    limited "CPUQuota on the scope" "$owner" property "$owner" CPUQuota=300%
    limited "CPUQuota on the pod's slice" "$pod" property "$pod" CPUQuota=400%
    survives "CPUWeight on kubepods.slice" property kubepods.slice CPUWeight=50
    survives "AllowedCPUs=all on kubepods.slice, as by the kubelet" property kubepods.slice "AllowedCPUs=$online"
    survives "daemon-reload after these changes" systemctl daemon-reload
}

dies_and_returns() {
    local before
    goes_on 3
    before=$(state)
    killed
    fact "changes by the agent's death" "" "$(diff <(echo "$before") <(state) || true)"
    start_agent
    goes_on 3
    fact "changes by the agent's restart" "" "$(diff <(echo "$before") <(state) || true)"
    terminated
    fact "changes by the agent's end after SIGTERM" "" "$(diff <(echo "$before") <(state) || true)"
}

# released SCOPE-QUOTA POD-QUOTA: runs `pinfold release` and checks that the previous settings are back.
released() {
    "$PINFOLD" release >>"$log" || fail "the exit code of pinfold release is $?"
    fact "CPUs of all cgroups after release" "$online" "$(everyone "${outside[@]}" "${units[@]}")"
    fact "allowed CPUs of the owner's process after release" "$online" "$(running)"
    fact "quotas of the scope and of the pod's slice after release" "$1, $2" "$(have "$owner" cpu.max), $(have "$pod" cpu.max)"
    fact "NUMA nodes of the owner after release" "$(</sys/devices/system/node/online)" "$(have "$owner" cpuset.mems.effective)"
    fact "output of a second release" "nothing is pinned here" "$("$PINFOLD" release)"
}

# --- with partitions ---

own_partition() {
    start_agent
    fact "enforcement" partition "$(status enforcement)"
    within 30 "the owner has a partition" grep -qx root "$cgroups/$owner/cpuset.cpus.partition"
    within 30 "the owner has 2 CPUs" runs_on "$owner" 2
    within 30 "the owner's quota is lifted" unlimited "$owner"
    within 30 "the quota of the owner's pod is lifted" unlimited "$pod"
    owned=$(effective "$owner")
    rest=$(without "$online" "$owned")
    within 30 "the owner's memory is bound" bound
    standing="root: $owned, process $owned"
    fact "state of the owner" "$standing" "$(standing)"
    fact "reserved CPUs of the owner" "" "$(within_both "$owned" "$reserved")"
    fact "the agent's log has writes to the owner's cgroup" yes "$( (($(writes_since 0) > 0)) && echo yes || echo no)"
    fact "CPUs of all others: init.scope, system.slice, user.slice, pods, this process" "$rest" \
        "$(everyone "${outside[@]}" kubepods.slice "$pod" "$sandbox" "$class" "$other_pod" "$other")"
    fact "PID 1 may run on" "$rest" "$(allowed 1)"
    fact "allowed CPUs of the other pod's process" "$rest" "$(allowed_in "$other")"
    fact "lost CPUs" "" "$(lost)"
}

no_loss() {
    local text
    fact "lost CPUs in /status" "" "$(status lost)"
    text=$("$PINFOLD" doctor --reserved "$reserved" -o json) || fail "the exit code of pinfold doctor is $?: $text"
    fact "doctor's finding about lost CPUs" "" "$(jq -r '.findings[] | select(.what == "lost CPUs") | .finding' <<<"$text")"
    fact "doctor's bad findings about partitions" none "$(jq -r '.findings[] | select(.what == "partitions" and .verdict == "bad") | .finding' <<<"$text" | grep . || echo none)"
    goes_on 2
    fact "lost CPUs in /status after doctor's trial partition" "" "$(status lost)"
    fact "drift in /status" "[]" "$(status drift)"
    fact "lost CPUs according to the kernel" "" "$(lost)"
    fact "state of the owner after doctor" "$standing" "$(standing)"
}

# systemd gives the owner's CPUs to the sandbox in three ways: some owned CPUs and other CPUs, only an owned CPU, all CPUs.
sandbox_gets_owned_cpus() {
    local said list some
    some=${owned%%[-,]*}
    for list in "$(together "$some" "$reserved")" "$some" "$online"; do
        property "$sandbox" "AllowedCPUs=$list"
        within 30 "the sandbox has left the owner's CPUs $owned after AllowedCPUs=$list" in_order
        fact "state of the owner" "$standing" "$(standing)"
        said=
        for _ in 1 2 3 4 5 6; do
            said+=$(status lost)
            sleep 0.3
        done
        fact "lost CPUs in /status during the next turns" "" "$said"
        within 30 "AllowedCPUs of the sandbox have no CPU of the owner" is_given_apart
        survives "daemon-reload after AllowedCPUs=$list on the sandbox" systemctl daemon-reload
        in_order || fact "the sandbox is off the owner's CPUs after daemon-reload" yes no
    done
    within 30 "the sandbox has its latest AllowedCPUs without $owned" is_given "$sandbox" "$rest"
    killed
    property "$sandbox" "AllowedCPUs=$(together "$some" "$reserved")"
    sleep 1
    echo "the sandbox gets CPU $some while no agent runs: $(force "$owner"), sandbox $(effective "$sandbox"), lost $(lost)"
    start_agent
    within 30 "the sandbox has left the owner's CPUs $owned after the agent's start" in_order
    fact "state of the owner" "$standing" "$(standing)"
    within 30 "the owner's quota stays lifted" unlimited "$owner"
    fact "messages about lost CPUs in the agent's log" 0 "$(grep -c "has lost CPU" "$log" || true)"
    no_loss
}

with_partitions() {
    mode=partition options=()
    echo "# partitions"
    pods runc
    own_partition
    fact "AllowedCPUs of the owner, its pod and the other pod's container stay empty" ", , " "$(given "$owner"), $(given "$pod"), $(given "$other")"
    systemd_goes_on
    survives "AllowedCPUs=$reserved on the scope" property "$owner" "AllowedCPUs=$reserved"
    survives "AllowedCPUs= on the scope" property "$owner" AllowedCPUs=
    survives "AllowedCPUs=all on the scope" property "$owner" "AllowedCPUs=$online"
    survives "AllowedCPUs=all on the pod's slice" property "$pod" "AllowedCPUs=$online"
    dies_and_returns
    start_agent
    sandbox_gets_owned_cpus
    again "$sandbox"
    within 30 "a new sandbox is off the owner's CPUs" in_order
    again "$owner" yes "${quota[@]}"
    within 30 "a restarted container has a partition" in_order
    fact "lost CPUs" "" "$(lost)"
    within 30 "the quota of the restarted container is lifted" unlimited "$owner"
    terminated
    released "200000 100000" "400000 100000"
    fact "exclusive of kubepods.slice, the pod and the scope" ", , " \
        "$(have kubepods.slice cpuset.cpus.exclusive), $(have "$pod" cpuset.cpus.exclusive), $(have "$owner" cpuset.cpus.exclusive)"
    fact "lost CPUs" "" "$(lost)"

    with_crun || return 0
    echo "# partitions with crun's tree"
    pods crun
    own_partition
    # systemd gives the sandbox one CPU, and then all CPUs. The release must restore the latest AllowedCPUs.
    property "$sandbox" "AllowedCPUs=${owned%%[-,]*}"
    within 30 "the sandbox has left the owner's CPUs $owned" in_order
    property "$sandbox" "AllowedCPUs=$online"
    within 30 "the sandbox has its latest AllowedCPUs without $owned" is_given "$sandbox" "$rest"
    within 30 "the sandbox is off the owner's CPUs $owned" in_order
    survives "daemon-reload" systemctl daemon-reload
    limited "CPUQuota on the scope" "$owner" property "$owner" CPUQuota=300%
    dies_and_returns
    released "300000 100000" "200000 100000"
    fact "lost CPUs" "" "$(lost)"
}

# --- without partitions ---

own_sets() {
    start_agent
    fact "enforcement" cpuset "$(status enforcement)"
    fact "enforcementReason names" systemd "$(status enforcementReason | grep -ow systemd)"
    within 30 "the owner runs on 2 CPUs" runs_on "$owner" 2
    within 30 "the owner's quota is lifted" unlimited "$owner"
    within 30 "the quota of the owner's pod is lifted" unlimited "$pod"
    owned=$(effective "$owner")
    rest=$(without "$online" "$owned")
    within 30 "the owner's memory is bound" bound
    standing="AllowedCPUs $owned, effective $owned, process $owned"
    fact "state of the owner" "$standing" "$(standing)"
    fact "reserved CPUs of the owner" "" "$(within_both "$owned" "$reserved")"
    fact "the agent's log has writes to the owner's cgroup" yes "$( (($(writes_since 0) > 0)) && echo yes || echo no)"
    within 30 "AllowedCPUs of the sandbox are the shared CPUs" is_given "$sandbox" "$rest"
    within 30 "AllowedCPUs of the other pod's container are the shared CPUs" is_given "$other" "$rest"
    within 30 "AllowedCPUs of the pod's slice are the CPUs of its scopes" is_given "$pod" "$online"
    fact "allowed CPUs of the processes of the sandbox and of the other pod's container" "$rest, $rest" "$(allowed_in "$sandbox"), $(allowed_in "$other")"
    fact "AllowedCPUs of the other pod's slice stay empty" "" "$(given "$other_pod")"
    within 30 "the other units of systemd have left the owner's CPUs $owned" beside_the_pods "$rest"
    fact "PID 1 may run on" "$rest" "$(allowed 1)"
}

# beside_the_pods LIST: whether the list is the effective CPUs of init.scope, system.slice and user.slice.
beside_the_pods() {
    local path
    for path in "${outside[@]}"; do [[ $(effective "$path") == "$1" ]] || return 1; done
}

over_dbus() {
    mode=cpuset
    echo "# AllowedCPUs"
    pods runc
    own_sets
    systemd_goes_on
    fact "AllowedCPUs of the sandbox and of the other pod's container then" "$rest, $rest" "$(given "$sandbox"), $(given "$other")"
    property "$owner" AllowedCPUs=0-1
    within 30 "the agent corrects a foreign AllowedCPUs=0-1 on the scope" is_given "$owner" "$owned"
    property "$other" "AllowedCPUs=$online"
    within 30 "the agent corrects AllowedCPUs=all on the other pod's container" is_given "$other" "$rest"
    property "$pod" "AllowedCPUs=$reserved"
    within 30 "the agent corrects AllowedCPUs=$reserved on the pod's slice" is_given "$pod" "$online"
    fact "state of the owner then" "$standing" "$(standing)"
    again "$other"
    within 30 "a later container has the shared CPUs" is_given "$other" "$rest"
    dies_and_returns
    released "300000 100000" "400000 100000"
    fact "AllowedCPUs of the owner, its pod, the sandbox and the other pod's container" "$online, $online, $online, $online" \
        "$(given "$owner"), $(given "$pod"), $(given "$sandbox"), $(given "$other")"
    systemctl daemon-reload
    written
    fact "CPUs of all cgroups after a daemon-reload" "$online" "$(everyone "${outside[@]}" "${units[@]}")"

    with_crun || return 0
    echo "# AllowedCPUs with crun's tree"
    pods crun
    own_sets
    survives "daemon-reload" systemctl daemon-reload
    limited "CPUQuota on the scope" "$owner" property "$owner" CPUQuota=300%
    dies_and_returns
    released "300000 100000" "200000 100000"
}

# Whether this kernel tests crun's tree.
with_crun() { [[ -n ${PINFOLD_TEST_ALL:-} ]] || ! since 7.0; }
# Whether this kernel tests AllowedCPUs.
by_allowed_cpus() { [[ -n ${PINFOLD_TEST_ALL:-} ]] || ! since 6.7; }

nodes_slices
options=()
if since 6.7; then
    with_partitions
    options=(--enforcement cpuset)
fi
if by_allowed_cpus; then
    # Without partitions, the kernel does not keep systemd's slices off the exclusive CPUs.
    echo 'cpuIsolation: {systemSlices: true}' >"$manifests/config"
    options+=(--config "$manifests/config")
    over_dbus
else
    echo "AllowedCPUs is tested on older kernels only; PINFOLD_TEST_ALL=1 tests AllowedCPUs on this kernel, too"
fi
settle
