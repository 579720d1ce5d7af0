# The kernel's and systemd's behaviour with cpusets where systemd owns the cgroup tree, observed by plain writes without
# Pinfold. Containers are scopes below kubepods.slice, made over D-Bus as by the kubelet and runc. Pinfold's enforcement on
# nodes with systemd depends on these facts.
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
# Linux 7.2 behaves differently from 6.12. The versions between them were not tested.
new=no
! since 7.2 || new=yes

members=(init.scope system.slice user.slice kubepods.slice "$pod" "$sibling" "$other_pod" "$other")

# As in systemd.sh, and waits until the cgroup has the property.
property() {
    systemctl set-property --runtime "$(basename "$1")" "$2"
    written
}

# survives SUBJECT COMMAND…: runs the command, and checks that the owner's partition stays.
survives() {
    local what=$1
    shift
    "$@" >/dev/null
    written
    fact "after $what" "root: $mine, process $mine" "$(force "$owner"), process $(allowed_in "$owner")"
}

controllers() {
    echo "# the cpuset controller"
    fact "cpuset in the subtree_control of kubepods.slice" 1 "$(grep -cw cpuset "$cgroups/kubepods.slice/cgroup.subtree_control")"
    fact "cpuset in the subtree_control of the pod" 1 "$(grep -cw cpuset "$cgroups/$pod/cgroup.subtree_control")"
    fact "CPUs of the container" "$online" "$(effective "$owner")"
}

survival() {
    echo "# a partition on a scope survives changes by systemd"
    fact "a partition" "" "$(own "$owner" "$mine")"
    fact "CPUs of all others: init.scope, system.slice, user.slice, pods, processes" "$rest" "$(everyone "${members[@]}")"
    fact "PID 1 may run on" "$rest" "$(allowed 1)"
    survives "daemon-reload" systemctl daemon-reload
    survives "daemon-reexec" systemctl daemon-reexec
    survives "starts and stops of other units" units_come_and_go "$other_pod"
    survives "CPUWeight on the scope" property "$owner" CPUWeight=50
    survives "CPUWeight on the pod's slice" property "$pod" CPUWeight=50
    survives "CPUWeight on kubepods.slice" property kubepods.slice CPUWeight=50
    survives "a quota on the scope" property "$owner" CPUQuota=200%
    survives "AllowedCPUs=4-5 on the scope" property "$owner" AllowedCPUs=4-5
    survives "AllowedCPUs=2 on the scope" property "$owner" AllowedCPUs=2
    survives "AllowedCPUs=all on the scope" property "$owner" "AllowedCPUs=$online"
    survives "AllowedCPUs= on the scope" property "$owner" AllowedCPUs=
    survives "daemon-reload after changes of AllowedCPUs" systemctl daemon-reload
    survives "AllowedCPUs=0-1 on the pod's slice" property "$pod" AllowedCPUs=0-1
    fact "CPUs of the pod's sandbox then" 0-1 "$(effective "$sibling")"
    survives "AllowedCPUs=all on the pod's slice" property "$pod" "AllowedCPUs=$online"
    survives "AllowedCPUs=0-1,6-7 on kubepods.slice" property kubepods.slice AllowedCPUs=0-1,6-7
    fact "CPUs of the other pod's container then" 0-1,6-7 "$(effective "$other")"
    survives "AllowedCPUs=all on kubepods.slice" property kubepods.slice "AllowedCPUs=$online"
    fact "CPUs of all other cgroups" "$rest" "$(everyone "${members[@]}")"
    disown "$owner"
    fact "CPUs of all cgroups after the end of the partition" "$online" "$(everyone "${members[@]}")"
    fact "lost CPUs" "" "$(lost)"
}

siblings() {
    echo "# a sibling scope of the same pod"
    fact "a partition" "" "$(own "$owner" "$mine")"
    property "$sibling" AllowedCPUs=3-4
    if [[ $new == no ]]; then
        fact "state after AllowedCPUs=3-4 on the sibling" "root invalid: $mine, sibling 4, lost $mine" \
            "$(force "$owner"), sibling $(effective "$sibling"), lost $(lost)"
    else
        fact "state after AllowedCPUs=3-4 on the sibling" "root: $mine, sibling 4, lost " \
            "$(force "$owner"), sibling $(effective "$sibling"), lost $(lost)"
    fi
    property "$sibling" AllowedCPUs=4-5
    fact "member, then root, after AllowedCPUs=4-5 on the sibling" "ok ok" "$(become member "$owner") $(become root "$owner")"
    fact "state" "root: $mine, shared $rest" "$(force "$owner"), shared $(effective "")"
    fact "lost CPUs" "" "$(lost)"
    disown "$owner"
    property "$sibling" AllowedCPUs=3-4
    add_exclusive "$owner" "$mine"
    become root "$owner" >/dev/null
    if [[ $new == no ]]; then
        fact "state of a partition made beside a sibling with AllowedCPUs=3-4" "root invalid (Cpu list in cpuset.cpus not exclusive): $online" "$(force "$owner")"
    else
        fact "state of a partition made beside a sibling with AllowedCPUs=3-4" "root: $mine" "$(force "$owner")"
    fi
    disown "$owner"
    property "$sibling" AllowedCPUs=3
    fact "exclusive beside a sibling with AllowedCPUs=3, all of which the leaf would own" "$owner: EINVAL" "$(add_exclusive "$owner" "$mine")"
    disown "$owner"
    again "$sibling"
    fact "lost CPUs" "" "$(lost)"
    fact "CPUs of all cgroups" "$online" "$(everyone "${members[@]}")"
}

others() {
    local unit at
    echo "# other pods and slices"
    for unit in "$other" "$other_pod" system.slice; do
        fact "a partition" "" "$(own "$owner" "$mine")"
        survives "AllowedCPUs=3-4 on ${unit##*/}" property "$unit" AllowedCPUs=3-4
        disown "$owner"
        fact "a partition beside AllowedCPUs=3-4 on ${unit##*/}" "" "$(own "$owner" "$mine")"
        disown "$owner"
        property "$unit" AllowedCPUs=3
        # The kernel refuses exclusive at the level where the unit is a sibling of the owner or of the owner's ancestor.
        case $unit in
        "$other") at= ;;
        "$other_pod") at="$pod: EINVAL" ;;
        *) at="kubepods.slice: EINVAL" ;;
        esac
        fact "exclusive beside AllowedCPUs=3 on ${unit##*/}, all of which the leaf would own" "$at" "$(add_exclusive "$owner" "$mine")"
        disown "$owner"
        property "$unit" "AllowedCPUs=$online"
        fact "CPUs of all cgroups" "$online" "$(everyone "${members[@]}")"
    done
}

affinity() {
    local attempt
    echo "# a unit with CPUAffinity inside the partition"
    fact "a partition" "" "$(own "$owner" "$mine")"
    systemd-run --quiet --unit=affine --property=CPUAffinity=3 --remain-after-exit true || true
    # The unit fails a moment after the start.
    for ((attempt = 0; attempt < 100; attempt++)); do
        ! systemctl is-failed --quiet affine || break
        sleep 0.3
    done
    fact "the unit with CPUAffinity=3" "failed, 215" "$(systemctl is-failed affine || true), $(systemctl show -P ExecMainStatus affine)"
    systemctl reset-failed affine
    disown "$owner"
}

masks() {
    local irqs workqueues
    echo "# IRQs and workqueues"
    irqs=$(tail -n +1 /proc/irq/*/smp_affinity_list)
    workqueues=$(</sys/devices/virtual/workqueue/cpumask)
    fact "a partition" "" "$(own "$owner" "$mine")"
    fact "changes of IRQ masks by root" "" "$(diff <(echo "$irqs") <(tail -n +1 /proc/irq/*/smp_affinity_list) || true)"
    fact "mask of the unbound workqueues with root" "$workqueues" "$(</sys/devices/virtual/workqueue/cpumask)"
    fact "isolated" ok "$(become isolated "$owner")"
    fact "changes of IRQ masks by isolated" "" "$(diff <(echo "$irqs") <(tail -n +1 /proc/irq/*/smp_affinity_list) || true)"
    fact "CPUs 2 and 3 in the mask of the unbound workqueues with isolated" 0 $((0x$(</sys/devices/virtual/workqueue/cpumask) & 0xc))
    become root "$owner" >/dev/null
    disown "$owner"
}

below_the_scope() {
    local process
    echo "# a process in a cgroup below the scope, as with crun"
    process=$(head -n 1 "$cgroups/$owner/cgroup.procs")
    mkdir "$cgroups/$owner/container"
    echo "$process" >"$cgroups/$owner/container/cgroup.procs"
    fact "a partition on the scope" "" "$(own "$owner" "$mine")"
    fact "allowed CPUs of the process below the scope" "$mine" "$(allowed "$process")"
    systemctl daemon-reload
    written
    fact "after daemon-reload" "root: $mine, process $mine" "$(force "$owner"), process $(allowed "$process")"
    disown "$owner"
    again "$owner"
}

undelegated() {
    local path=plain.slice/plain.scope
    echo "# a scope without Delegate, with the cpuset controller enabled by a plain write"
    scope "$path" no
    echo "+cpuset" >"$cgroups/plain.slice/cgroup.subtree_control"
    fact "a partition" "" "$(own "$path" "$mine")"
    systemctl daemon-reload
    written
    fact "partition after daemon-reload" "root: $mine" "$([[ -e $cgroups/$path/cpuset.cpus.partition ]] && force "$path" || echo gone)"
    systemd-run --quiet --wait --slice=plain.slice true
    written
    fact "partition after the start of a second unit in the slice" "gone" "$([[ -e $cgroups/$path/cpuset.cpus.partition ]] && force "$path" || echo gone)"
    fact "lost CPUs" "" "$(lost)"
    ended "$path"
    fact "lost CPUs after the end of the scope" "" "$(lost)"
    fact "CPUs of all cgroups" "$online" "$(everyone "${members[@]}")"
}

bare() {
    local kept=$mine
    # After a change of any property of the scope, PID 1 writes cpuset.cpus again. Here PID 1 writes an empty value, because
    # AllowedCPUs is not set. Before 7.2 the kernel refuses to clear cpuset.cpus.
    [[ $new == no ]] || kept=$online
    echo "# cpuset.cpus without a partition"
    again "$owner"
    fact "cpuset.cpus=$mine, AllowedCPUs unset" ok "$(cpus "$mine" "$owner")"
    systemctl daemon-reload
    written
    fact "after daemon-reload" "$mine" "$(effective "$owner")"
    property "$owner" CPUQuota=200%
    fact "after a quota on the scope" "$kept" "$(effective "$owner")"
    property "$owner" AllowedCPUs=4-5
    fact "AllowedCPUs=4-5" 4-5 "$(effective "$owner")"
    fact "cpuset.cpus=$mine by a plain write" ok "$(cpus "$mine" "$owner")"
    systemctl daemon-reload
    written
    fact "after daemon-reload" "$mine" "$(effective "$owner")"
    property "$owner" CPUQuota=300%
    fact "after a quota on the scope" 4-5 "$(effective "$owner")"
}

# pinned SUBJECT COMMAND…: runs the command, and checks that the owner keeps its AllowedCPUs.
pinned() {
    local what=$1
    shift
    "$@" >/dev/null
    written
    fact "after $what" "$mine, process $mine" "$(effective "$owner"), process $(allowed_in "$owner")"
}

over_dbus() {
    echo "# AllowedCPUs over D-Bus"
    again "$owner"
    pinned "AllowedCPUs=$mine" manager SetUnitProperties 'sba(sv)' "$(basename "$owner")" yes 1 AllowedCPUs ay $(mask "$mine")
    pinned "daemon-reload" systemctl daemon-reload
    pinned "daemon-reexec" systemctl daemon-reexec
    pinned "starts and stops of other units" units_come_and_go "$other_pod"
    pinned "CPUWeight on the scope" property "$owner" CPUWeight=70
    pinned "CPUWeight on the pod's slice" property "$pod" CPUWeight=70
    pinned "a quota on the scope" property "$owner" CPUQuota=200%
    pinned "AllowedCPUs on kubepods.slice" property kubepods.slice "AllowedCPUs=$online"
    property "$owner" AllowedCPUs=
    if [[ $new == no ]]; then
        fact "CPUs after an empty AllowedCPUs" "$mine" "$(effective "$owner")"
    else
        fact "CPUs after an empty AllowedCPUs" "$online" "$(effective "$owner")"
    fi
    property "$owner" "AllowedCPUs=$online"
    fact "CPUs after AllowedCPUs=$online" "$online" "$(effective "$owner")"
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
