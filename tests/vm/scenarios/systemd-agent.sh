# The agent where systemd owns the tree, as on a kubelet's node: pods are slices, containers scopes that runc or crun has
# made. What it gives survives what systemd does, a neighbour in the pod costs no CPU, and release puts back what was.
#
# Each way to enforce and each runtime's tree is tried on one kernel at least; PINFOLD_TEST_ALL=1 tries all on every kernel,
# which takes ten minutes more.
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
        echo "the agent said:"
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

# pods runc|crun: both pods anew. crun leaves a scope without processes of its own: they are in a cgroup below it.
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

# What the kernel lets the owner's process run on.
running() {
    if [[ -d $cgroups/$owner/container ]]; then allowed_in "$owner/container"; else allowed_in "$owner"; fi
}

# The AllowedCPUs that systemd knows of a unit.
given() { systemctl show -P AllowedCPUs "$(basename "$1")" | tr ' ' ','; }
# The AllowedMemoryNodes likewise.
remembered() { systemctl show -P AllowedMemoryNodes "$(basename "$1")" | tr ' ' ','; }

# --- the agent ---

start_agent() {
    PINFOLD_LOG_LEVEL=pinfold=debug "$PINFOLD" run --manifest-dir "$manifests" --reserved "$reserved" --reconcile-interval 1s \
        --listen 127.0.0.1:9470 "${options[@]}" 2>>"$log" &
    agent=$!
    within 60 "the agent is ready" ready
}

ready() {
    kill -0 "$agent" 2>/dev/null || fail "the agent ended by itself"
    http_get /readyz >/dev/null
}

killed() {
    kill -KILL "$agent"
    wait "$agent" 2>/dev/null || true
    agent=
}

terminated() {
    kill -TERM "$agent"
    wait "$agent" || fail "the agent ended with $? at SIGTERM"
    agent=
}

# Everything that an agent could move.
state() {
    local path file
    for path in "${units[@]}" "${outside[@]}"; do
        for file in cpuset.mems cpuset.cpus cpuset.cpus.exclusive cpuset.cpus.partition cpuset.cpus.effective cpu.max; do
            [[ ! -e $cgroups/$path/$file ]] || echo "$path $file: $(<"$cgroups/$path/$file")"
        done
        [[ $path != *.scope ]] || echo "$path AllowedCPUs: $(given "$path"), AllowedMemoryNodes: $(remembered "$path")"
    done
}

# How often the agent has written to the owner since a line of its log.
writes_since() { tail -n +$(($1 + 1)) "$log" | grep -c "$owner: \(root\|member\|CPUs\|exclusive\)" || true; }
lines() { wc -l <"$log"; }

runs_on() { [[ $(expand "$(effective "$1")" | wc -l) == "$2" ]]; }
# The NUMA nodes of a list of CPUs, and whether the owner's memory is bound to those of its CPUs.
nodes_of() {
    local node marked=()
    for node in /sys/devices/system/node/node[0-9]*; do
        [[ -z $(within_both "$(<"$node/cpulist")" "$1") ]] || marked[${node##*/node}]=yes
    done
    marks
}
# Where systemd has the say, it knows them too, and so doesn't forget them.
bound() {
    local nodes
    nodes=$(nodes_of "$owned")
    [[ $(have "$owner" cpuset.mems.effective) == "$nodes" && $(remembered "$owner") == "$nodes" ]]
}
unlimited() { [[ $(have "$1" cpu.max) == max* ]]; }
is_given() { [[ $(given "$1") == "$2" && $(effective "$1") == "$2" ]]; }
# Whether systemd gives the neighbour in the owner's pod nothing that the owner has, and that is in force.
is_given_apart() { [[ -z $(within_both "$(given "$sandbox")" "$owned") && $(effective "$sandbox") == "$(allowed_in "$sandbox")" ]]; }
# Whether the owner has a partition of the CPUs it owns, and no neighbour in its pod has a word in them.
in_order() { [[ $(force "$owner") == "root: $owned" && -z $(within_both "$(have "$sandbox" cpuset.cpus)" "$owned") ]]; }

# survives WHAT COMMAND…: what the owner has stays, and the agent has nothing to write to it.
survives() {
    local what=$1 from
    from=$(lines)
    shift
    "$@" >/dev/null
    sleep 1.5
    fact "after $what" "$standing, 0 writes" "$(standing), $(writes_since "$from") writes"
}

standing() {
    if [[ $mode == partition ]]; then
        echo "$(force "$owner"), process $(running)"
    else
        echo "AllowedCPUs $(given "$owner"), in force $(effective "$owner"), process $(running)"
    fi
}

# limited WHAT PATH COMMAND…: systemd writes the quota anew, which the agent lifts again; the owner's NUMA nodes stay.
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
    survives "units that come and go" units_come_and_go "$other_pod"
    limited "CPUWeight on the scope" "$owner" property "$owner" CPUWeight=50
    limited "CPUWeight on its slice" "$pod" property "$pod" CPUWeight=50
    limited "CPUQuota on the scope" "$owner" property "$owner" CPUQuota=300%
    limited "CPUQuota on its slice" "$pod" property "$pod" CPUQuota=400%
    survives "CPUWeight on kubepods.slice" property kubepods.slice CPUWeight=50
    survives "AllowedCPUs=all on kubepods.slice, as the kubelet has it" property kubepods.slice "AllowedCPUs=$online"
    survives "daemon-reload after them" systemctl daemon-reload
}

dies_and_returns() {
    local before
    sleep 3
    before=$(state)
    killed
    fact "what the agent's death moved" "" "$(diff <(echo "$before") <(state) || true)"
    start_agent
    sleep 3
    fact "what its restart moved" "" "$(diff <(echo "$before") <(state) || true)"
    terminated
    fact "what its orderly end moved" "" "$(diff <(echo "$before") <(state) || true)"
}

# released SCOPE'S-QUOTA POD'S-QUOTA
released() {
    "$PINFOLD" release >>"$log" || fail "release ended with $?"
    fact "CPUs of all cgroups after release" "$online" "$(everyone "${outside[@]}" "${units[@]}")"
    fact "the owner's process" "$online" "$(running)"
    fact "the quotas of the scope and of its slice" "$1, $2" "$(have "$owner" cpu.max), $(have "$pod" cpu.max)"
    fact "its NUMA nodes" "$(</sys/devices/system/node/online)" "$(have "$owner" cpuset.mems.effective)"
    fact "a second release" "nothing is pinned here" "$("$PINFOLD" release)"
}

# --- with partitions ---

own_partition() {
    start_agent
    fact "enforcement" partition "$(status enforcement)"
    within 30 "the owner has a partition" grep -qx root "$cgroups/$owner/cpuset.cpus.partition"
    within 30 "of 2 CPUs" runs_on "$owner" 2
    within 30 "its quota is lifted" unlimited "$owner"
    within 30 "its pod's is lifted" unlimited "$pod"
    owned=$(effective "$owner")
    rest=$(without "$online" "$owned")
    within 30 "its memory is bound" bound
    standing="root: $owned, process $owned"
    fact "state" "$standing" "$(standing)"
    fact "reserved CPUs that it owns" "" "$(within_both "$owned" "$reserved")"
    fact "the agent's log tells its writes to the owner" yes "$( (($(writes_since 0) > 0)) && echo yes || echo no)"
    fact "CPUs of all others: init.scope, system.slice, user.slice, pods, this process" "$rest" \
        "$(everyone "${outside[@]}" kubepods.slice "$pod" "$sandbox" "$class" "$other_pod" "$other")"
    fact "PID 1 may run on" "$rest" "$(allowed 1)"
    fact "the other pod's process" "$rest" "$(allowed_in "$other")"
    fact "lost CPUs" "" "$(lost)"
}

no_loss() {
    local text
    fact "status: lost" "" "$(status lost)"
    text=$("$PINFOLD" doctor --reserved "$reserved" -o json) || fail "doctor ended with $?: $text"
    fact "doctor: lost CPUs" "" "$(jq -r '.findings[] | select(.what == "lost CPUs") | .finding' <<<"$text")"
    fact "doctor: partitions" "no bad word" "$(jq -r '.findings[] | select(.what == "partitions" and .verdict == "bad") | .finding' <<<"$text" | grep . || echo "no bad word")"
    sleep 2
    fact "status: lost, after doctor's own partition" "" "$(status lost)"
    fact "status: drift" "[]" "$(status drift)"
    fact "lost CPUs according to the kernel" "" "$(lost)"
    fact "state of the owner after doctor" "$standing" "$(standing)"
}

# A container of the same pod that is given the owner's CPUs, by three ways of overlapping.
neighbour_in_the_pod() {
    local said list some
    some=${owned%%[-,]*}
    for list in "$(together "$some" "$reserved")" "$some" "$online"; do
        property "$sandbox" "AllowedCPUs=$list"
        within 30 "a neighbour in the pod with AllowedCPUs=$list is off $owned" in_order
        fact "state" "$standing" "$(standing)"
        said=
        for _ in 1 2 3 4 5 6; do
            said+=$(status lost)
            sleep 0.3
        done
        fact "status: lost, over some reconciles" "" "$said"
        within 30 "systemd knows it, too" is_given_apart
        survives "daemon-reload after it" systemctl daemon-reload
        in_order || fact "in order after daemon-reload" yes no
    done
    within 30 "the neighbour has what it was given last, less $owned" is_given "$sandbox" "$rest"
    killed
    property "$sandbox" "AllowedCPUs=$(together "$some" "$reserved")"
    sleep 1
    echo "a neighbour is given CPU $some while no agent runs: $(force "$owner"), neighbour $(effective "$sandbox"), lost $(lost)"
    start_agent
    within 30 "it is off $owned" in_order
    fact "state" "$standing" "$(standing)"
    within 30 "the quota stays lifted" unlimited "$owner"
    fact "alarms over lost CPUs" 0 "$(grep -c "has lost CPU" "$log" || true)"
    no_loss
}

with_partitions() {
    mode=partition options=()
    echo "# partitions"
    pods runc
    own_partition
    fact "AllowedCPUs of the owner, its pod and the neighbour, which nobody needs" ", , " "$(given "$owner"), $(given "$pod"), $(given "$other")"
    systemd_goes_on
    survives "AllowedCPUs of others on the scope" property "$owner" "AllowedCPUs=$reserved"
    survives "AllowedCPUs= on the scope" property "$owner" AllowedCPUs=
    survives "AllowedCPUs=all on the scope" property "$owner" "AllowedCPUs=$online"
    survives "AllowedCPUs=all on its slice" property "$pod" "AllowedCPUs=$online"
    dies_and_returns
    start_agent
    neighbour_in_the_pod
    again "$sandbox"
    within 30 "in order with a new sandbox" in_order
    again "$owner" yes "${quota[@]}"
    within 30 "a container that ended and came again has a partition" in_order
    fact "lost CPUs" "" "$(lost)"
    within 30 "its quota is lifted" unlimited "$owner"
    terminated
    released "200000 100000" "400000 100000"
    fact "exclusive of kubepods.slice, the pod and the scope" ", , " \
        "$(have kubepods.slice cpuset.cpus.exclusive), $(have "$pod" cpuset.cpus.exclusive), $(have "$owner" cpuset.cpus.exclusive)"
    fact "lost CPUs" "" "$(lost)"

    with_crun || return 0
    echo "# partitions, as crun has it"
    pods crun
    own_partition
    # Given narrowly and then widely: release gives back what was given last.
    property "$sandbox" "AllowedCPUs=${owned%%[-,]*}"
    within 30 "the neighbour is off $owned" in_order
    property "$sandbox" "AllowedCPUs=$online"
    within 30 "it has what it was given last, less $owned" is_given "$sandbox" "$rest"
    within 30 "and is off $owned" in_order
    survives "daemon-reload" systemctl daemon-reload
    limited "CPUQuota on the scope" "$owner" property "$owner" CPUQuota=300%
    dies_and_returns
    released "300000 100000" "200000 100000"
    fact "lost CPUs" "" "$(lost)"
}

# --- without ---

own_sets() {
    start_agent
    fact "enforcement" cpuset "$(status enforcement)"
    fact "its reason names" systemd "$(status enforcementReason | grep -ow systemd)"
    within 30 "the owner runs on 2 CPUs" runs_on "$owner" 2
    within 30 "its quota is lifted" unlimited "$owner"
    within 30 "its pod's is lifted" unlimited "$pod"
    owned=$(effective "$owner")
    rest=$(without "$online" "$owned")
    within 30 "its memory is bound" bound
    standing="AllowedCPUs $owned, in force $owned, process $owned"
    fact "state" "$standing" "$(standing)"
    fact "reserved CPUs that it owns" "" "$(within_both "$owned" "$reserved")"
    fact "the agent's log tells its writes to the owner" yes "$( (($(writes_since 0) > 0)) && echo yes || echo no)"
    within 30 "the sandbox is narrowed by AllowedCPUs" is_given "$sandbox" "$rest"
    within 30 "the other pod's container is" is_given "$other" "$rest"
    within 30 "the pod's slice has what its scopes have" is_given "$pod" "$online"
    fact "their processes" "$rest, $rest" "$(allowed_in "$sandbox"), $(allowed_in "$other")"
    fact "the other pod's slice, which needs nothing" "" "$(given "$other_pod")"
    within 30 "what systemd runs is off $owned" beside_the_pods "$rest"
    fact "PID 1 may run on" "$rest" "$(allowed 1)"
}

# beside_the_pods CPUS: what systemd runs outside the pods has these.
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
    fact "the neighbours then" "$rest, $rest" "$(given "$sandbox"), $(given "$other")"
    property "$owner" AllowedCPUs=0-1
    within 30 "AllowedCPUs=0-1 on the scope, by another, is put right" is_given "$owner" "$owned"
    property "$other" "AllowedCPUs=$online"
    within 30 "AllowedCPUs=all on the neighbour is put right" is_given "$other" "$rest"
    property "$pod" "AllowedCPUs=$reserved"
    within 30 "AllowedCPUs=$reserved on the pod's slice is put right" is_given "$pod" "$online"
    fact "the owner then" "$standing" "$(standing)"
    again "$other"
    within 30 "a container that came later is narrowed" is_given "$other" "$rest"
    dies_and_returns
    released "300000 100000" "400000 100000"
    fact "AllowedCPUs of the owner, its pod, the sandbox and the neighbour" "$online, $online, $online, $online" \
        "$(given "$owner"), $(given "$pod"), $(given "$sandbox"), $(given "$other")"
    systemctl daemon-reload
    sleep 0.5
    fact "CPUs of all cgroups after a daemon-reload" "$online" "$(everyone "${outside[@]}" "${units[@]}")"

    with_crun || return 0
    echo "# AllowedCPUs, as crun has it"
    pods crun
    own_sets
    survives "daemon-reload" systemctl daemon-reload
    limited "CPUQuota on the scope" "$owner" property "$owner" CPUQuota=300%
    dies_and_returns
    released "300000 100000" "200000 100000"
}

# Whether crun's tree is tried here, and AllowedCPUs.
with_crun() { [[ -n ${PINFOLD_TEST_ALL:-} ]] || ! since 7.0; }
by_allowed_cpus() { [[ -n ${PINFOLD_TEST_ALL:-} ]] || ! since 6.7; }

nodes_slices
options=()
if since 6.7; then
    with_partitions
    options=(--enforcement cpuset)
fi
if by_allowed_cpus; then
    # Here the kernel doesn't keep systemd's own off by itself.
    echo 'cpuIsolation: {systemSlices: true}' >"$manifests/config"
    options+=(--config "$manifests/config")
    over_dbus
else
    echo "not tried here: AllowedCPUs, which the other kernels show; PINFOLD_TEST_ALL=1 does"
fi
settle
