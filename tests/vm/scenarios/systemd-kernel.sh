# What becomes of cpusets where systemd owns the tree: containers are scopes below kubepods.slice, as the kubelet and runc
# make them over D-Bus. By plain writes and without Pinfold, whose enforcement on such nodes stands on these facts.
# vm: small systemd 6.12
source tests/vm/check.sh
source tests/vm/cpuset.sh
source tests/vm/systemd.sh

pod=kubepods.slice/kubepods-podA.slice
owner=$pod/cri-containerd-main.scope
sibling=$pod/cri-containerd-sandbox.scope
other_pod=kubepods.slice/kubepods-podB.slice
other=$other_pod/cri-containerd-other.scope
mine=2-3
rest=$(without "$online" "$mine")
# What is otherwise from 7.2 on; where between 6.12 and 7.2 it changed has not been tried.
new=no
! since 7.2 || new=yes

members=(init.scope system.slice user.slice kubepods.slice "$pod" "$sibling" "$other_pod" "$other")

# survives WHAT COMMAND…: the partition of `owner` does.
survives() {
    local what=$1
    shift
    "$@" >/dev/null
    sleep 0.5
    fact "after $what" "root: $mine, process $mine" "$(force "$owner"), process $(allowed_in "$owner")"
}

controllers() {
    echo "# the cpuset controller"
    fact "in kubepods.slice's subtree" 1 "$(grep -cw cpuset "$cgroups/kubepods.slice/cgroup.subtree_control")"
    fact "in the pod's" 1 "$(grep -cw cpuset "$cgroups/$pod/cgroup.subtree_control")"
    fact "CPUs of the container before" "$online" "$(effective "$owner")"
}

survival() {
    echo "# a partition on a scope, and what it survives"
    fact "made" "" "$(own "$owner" "$mine")"
    fact "CPUs of everyone else: init.scope, system.slice, user.slice, pods, processes" "$rest" "$(everyone "${members[@]}")"
    fact "PID 1 may run on" "$rest" "$(allowed 1)"
    survives "daemon-reload" systemctl daemon-reload
    survives "daemon-reexec" systemctl daemon-reexec
    survives "other units that come and go" units_come_and_go "$other_pod"
    survives "CPUWeight on the scope" property "$owner" CPUWeight=50
    survives "CPUWeight on its slice" property "$pod" CPUWeight=50
    survives "CPUWeight on kubepods.slice" property kubepods.slice CPUWeight=50
    survives "a quota on the scope" property "$owner" CPUQuota=200%
    survives "AllowedCPUs=4-5 on the scope" property "$owner" AllowedCPUs=4-5
    survives "AllowedCPUs=2 on the scope" property "$owner" AllowedCPUs=2
    survives "AllowedCPUs=all on the scope" property "$owner" "AllowedCPUs=$online"
    survives "AllowedCPUs= on the scope" property "$owner" AllowedCPUs=
    survives "daemon-reload after them" systemctl daemon-reload
    survives "AllowedCPUs=0-1 on its slice" property "$pod" AllowedCPUs=0-1
    fact "its sandbox then" 0-1 "$(effective "$sibling")"
    survives "AllowedCPUs=all on its slice" property "$pod" "AllowedCPUs=$online"
    survives "AllowedCPUs=0-1,6-7 on kubepods.slice" property kubepods.slice AllowedCPUs=0-1,6-7
    fact "the other pod's container then" 0-1,6-7 "$(effective "$other")"
    survives "AllowedCPUs=all on kubepods.slice" property kubepods.slice "AllowedCPUs=$online"
    fact "CPUs of everyone else" "$rest" "$(everyone "${members[@]}")"
    disown "$owner"
    fact "given back" "$online" "$(everyone "${members[@]}")"
    fact "CPUs that nobody has" "" "$(lost)"
}

siblings() {
    echo "# a sibling scope of the same pod"
    fact "a partition" "" "$(own "$owner" "$mine")"
    property "$sibling" AllowedCPUs=3-4
    sleep 0.3
    if [[ $new == no ]]; then
        fact "the sibling gets AllowedCPUs=3-4: in force" "root invalid: $mine, sibling 4, lost $mine" \
            "$(force "$owner"), sibling $(effective "$sibling"), lost $(lost)"
    else
        fact "the sibling gets AllowedCPUs=3-4: in force" "root: $mine, sibling 4, lost " \
            "$(force "$owner"), sibling $(effective "$sibling"), lost $(lost)"
    fi
    property "$sibling" AllowedCPUs=4-5
    fact "the sibling made disjoint, then member, then root" "ok ok" "$(become member "$owner") $(become root "$owner")"
    fact "in force" "root: $mine, shared $rest" "$(force "$owner"), shared $(effective "")"
    fact "CPUs that nobody has" "" "$(lost)"
    disown "$owner"
    property "$sibling" AllowedCPUs=3-4
    add_exclusive "$owner" "$mine"
    become root "$owner" >/dev/null
    if [[ $new == no ]]; then
        fact "made beside a sibling with 3-4" "root invalid (Cpu list in cpuset.cpus not exclusive): $online" "$(force "$owner")"
    else
        fact "made beside a sibling with 3-4" "root: $mine" "$(force "$owner")"
    fi
    disown "$owner"
    property "$sibling" AllowedCPUs=3
    fact "beside a sibling wholly inside the set: the leaf's exclusive" "$owner: EINVAL" "$(add_exclusive "$owner" "$mine")"
    disown "$owner"
    again "$sibling"
    fact "CPUs that nobody has" "" "$(lost)"
    fact "CPUs of everyone" "$online" "$(everyone "${members[@]}")"
}

others() {
    local unit at
    echo "# other pods and slices"
    for unit in "$other" "$other_pod" system.slice; do
        fact "a partition" "" "$(own "$owner" "$mine")"
        survives "AllowedCPUs=3-4 on ${unit##*/}" property "$unit" AllowedCPUs=3-4
        disown "$owner"
        fact "made beside AllowedCPUs=3-4 on ${unit##*/}" "" "$(own "$owner" "$mine")"
        disown "$owner"
        property "$unit" AllowedCPUs=3
        # The level at which the unit is a sibling of the owner or of an ancestor of the owner's.
        case $unit in
        "$other") at= ;;
        "$other_pod") at="$pod: EINVAL" ;;
        *) at="kubepods.slice: EINVAL" ;;
        esac
        fact "exclusive beside AllowedCPUs=3 on ${unit##*/}, which is wholly inside" "$at" "$(add_exclusive "$owner" "$mine")"
        disown "$owner"
        property "$unit" "AllowedCPUs=$online"
        fact "CPUs of everyone" "$online" "$(everyone "${members[@]}")"
    done
}

affinity() {
    echo "# CPUAffinity inside the set"
    fact "a partition" "" "$(own "$owner" "$mine")"
    systemd-run --quiet --unit=affine --property=CPUAffinity=3 --remain-after-exit true || true
    sleep 1
    fact "the unit" "failed, 215" "$(systemctl is-failed affine || true), $(systemctl show -P ExecMainStatus affine)"
    systemctl reset-failed affine
    disown "$owner"
}

masks() {
    local irqs workqueues
    echo "# IRQs and workqueues"
    irqs=$(tail -n +1 /proc/irq/*/smp_affinity_list)
    workqueues=$(</sys/devices/virtual/workqueue/cpumask)
    fact "a partition" "" "$(own "$owner" "$mine")"
    fact "IRQs' masks that root changes" "" "$(diff <(echo "$irqs") <(tail -n +1 /proc/irq/*/smp_affinity_list) || true)"
    fact "the unbound workqueues' mask with root" "$workqueues" "$(</sys/devices/virtual/workqueue/cpumask)"
    fact "isolated" ok "$(become isolated "$owner")"
    fact "IRQs' masks that isolated changes" "" "$(diff <(echo "$irqs") <(tail -n +1 /proc/irq/*/smp_affinity_list) || true)"
    fact "CPUs 2 and 3 in the unbound workqueues' mask with isolated" 0 $((0x$(</sys/devices/virtual/workqueue/cpumask) & 0xc))
    become root "$owner" >/dev/null
    disown "$owner"
}

below_the_scope() {
    local process
    echo "# tasks in a cgroup below the scope, as crun has them"
    process=$(head -n 1 "$cgroups/$owner/cgroup.procs")
    mkdir "$cgroups/$owner/container"
    echo "$process" >"$cgroups/$owner/container/cgroup.procs"
    fact "a partition on the scope" "" "$(own "$owner" "$mine")"
    fact "the process below may run on" "$mine" "$(allowed "$process")"
    systemctl daemon-reload
    sleep 0.5
    fact "after daemon-reload" "root: $mine, process $mine" "$(force "$owner"), process $(allowed "$process")"
    disown "$owner"
    again "$owner"
}

undelegated() {
    local path=plain.slice/plain.scope
    echo "# a scope without Delegate, its cpuset enabled by hand"
    scope "$path" no
    echo "+cpuset" >"$cgroups/plain.slice/cgroup.subtree_control"
    fact "a partition" "" "$(own "$path" "$mine")"
    systemctl daemon-reload
    sleep 0.5
    fact "after daemon-reload" "root: $mine" "$([[ -e $cgroups/$path/cpuset.cpus.partition ]] && force "$path" || echo gone)"
    systemd-run --quiet --wait --slice=plain.slice true
    sleep 0.5
    fact "after another unit in the slice" "gone" "$([[ -e $cgroups/$path/cpuset.cpus.partition ]] && force "$path" || echo gone)"
    fact "CPUs that nobody has" "" "$(lost)"
    ended "$path"
    fact "CPUs that nobody has once it has ended" "" "$(lost)"
    fact "CPUs of everyone" "$online" "$(everyone "${members[@]}")"
}

bare() {
    local kept=$mine
    # A change of any property of the scope makes PID 1 write its cpuset anew; before 7.2 the kernel refuses to clear it.
    [[ $new == no ]] || kept=$online
    echo "# bare cpuset.cpus"
    again "$owner"
    fact "cpuset.cpus=$mine, AllowedCPUs unset" ok "$(cpus "$mine" "$owner")"
    systemctl daemon-reload
    sleep 0.5
    fact "after daemon-reload" "$mine" "$(effective "$owner")"
    property "$owner" CPUQuota=200%
    sleep 0.5
    fact "after a quota on the scope" "$kept" "$(effective "$owner")"
    property "$owner" AllowedCPUs=4-5
    fact "AllowedCPUs=4-5" 4-5 "$(effective "$owner")"
    fact "cpuset.cpus=$mine over it" ok "$(cpus "$mine" "$owner")"
    systemctl daemon-reload
    sleep 0.5
    fact "after daemon-reload" "$mine" "$(effective "$owner")"
    property "$owner" CPUQuota=300%
    sleep 0.5
    fact "after a quota on the scope" 4-5 "$(effective "$owner")"
}

# pinned WHAT COMMAND…: AllowedCPUs of `owner` survive.
pinned() {
    local what=$1
    shift
    "$@" >/dev/null
    sleep 0.5
    fact "after $what" "$mine, process $mine" "$(effective "$owner"), process $(allowed_in "$owner")"
}

over_dbus() {
    echo "# AllowedCPUs over D-Bus"
    again "$owner"
    pinned "AllowedCPUs=$mine" manager SetUnitProperties 'sba(sv)' "$(basename "$owner")" yes 1 AllowedCPUs ay $(mask "$mine")
    pinned "daemon-reload" systemctl daemon-reload
    pinned "daemon-reexec" systemctl daemon-reexec
    pinned "other units that come and go" units_come_and_go "$other_pod"
    pinned "CPUWeight on the scope" property "$owner" CPUWeight=70
    pinned "CPUWeight on its slice" property "$pod" CPUWeight=70
    pinned "a quota on the scope" property "$owner" CPUQuota=200%
    pinned "AllowedCPUs on kubepods.slice" property kubepods.slice "AllowedCPUs=$online"
    property "$owner" AllowedCPUs=
    sleep 0.5
    if [[ $new == no ]]; then
        fact "an empty AllowedCPUs undoes nothing" "$mine" "$(effective "$owner")"
    else
        fact "an empty AllowedCPUs undoes it" "$online" "$(effective "$owner")"
    fi
    property "$owner" "AllowedCPUs=$online"
    fact "all CPUs" "$online" "$(effective "$owner")"
}

finish() {
    local path
    for path in "$owner" "$sibling" "$other"; do systemctl stop "$(basename "$path")" || true; done
    systemctl stop kubepods.slice plain.slice || true
}
trap finish EXIT

nodes_slices
for path in "$owner" "$sibling" "$other"; do scope "$path"; done
if since 6.7; then
    controllers
    survival
    siblings
    others
    affinity
    masks
    below_the_scope
    undelegated
fi
bare
over_dbus
settle
