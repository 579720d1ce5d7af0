# What the scenarios share on guests where systemd owns the tree; they source it after check.sh and cpuset.sh. Containers
# are made as the kubelet and runc make them, over D-Bus. A unit is named by its cgroup's path. Nothing here knows Pinfold.
# shellcheck shell=bash

manager() {
    busctl --quiet call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager "$@"
}

# A list of CPUs as D-Bus has it: the number of bytes, and the bytes of a mask.
mask() {
    local marked=() bytes=() cpu
    mark "$1"
    for cpu in "${!marked[@]}"; do ((bytes[cpu / 8] |= 1 << cpu % 8)); done
    for ((cpu = 0; cpu < ${#bytes[@]} || cpu == 0; cpu++)); do : "${bytes[cpu]:=0}"; done
    echo "${#bytes[@]} ${bytes[*]}"
}

# slice PATH [PROPERTY TYPE VALUE…]: a slice as the kubelet makes it, with one property more or none.
slice() {
    local path=$1
    shift
    manager StartTransientUnit 'ssa(sv)a(sa(sv))' "$(basename "$path")" replace $((1 + ($# > 0))) \
        DefaultDependencies b no "$@" 0
}

# scope PATH [yes|no [PROPERTY TYPE VALUE…]]: a scope of its own with a process in it; delegated, as containers are, unless
# told otherwise; with one property more or none.
scope() {
    local path=$1 delegate=${2:-yes} slice
    shift $(($# < 2 ? $# : 2))
    slice=$(basename "${path%/*}")
    sleep 100000 &
    processes+=($!)
    manager StartTransientUnit 'ssa(sv)a(sa(sv))' "$(basename "$path")" replace $((4 + ($# > 0))) \
        PIDs au 1 $! Slice s "$slice" Delegate b "$delegate" DefaultDependencies b no "$@" 0
    until grep -qx $! "$cgroups/$path/cgroup.procs" 2>/dev/null; do sleep 0.05; done
}

ended() {
    systemctl stop "$(basename "$1")"
    while [[ -d $cgroups/$1 ]]; do sleep 0.05; done
}

# again PATH…: ended, and made anew as `scope` does.
again() {
    ended "$1"
    scope "$@"
}

# A unit's property, as the kubelet and runc set it; an empty value for AllowedCPUs resets it.
property() { systemctl set-property --runtime "$(basename "$1")" "$2"; }

# units_come_and_go SLICE: two units, one of them in this slice, and one that starts anew.
units_come_and_go() {
    systemd-run --quiet --unit=come-and-go sleep 100000
    systemctl stop come-and-go
    systemd-run --quiet --wait --slice="$(basename "$1")" true
    systemctl restart systemd-journald
}

# The tree above the pods, as the kubelet makes it, and user.slice, as after a login.
nodes_slices() {
    manager StartTransientUnit 'ssa(sv)a(sa(sv))' kubepods.slice replace 2 \
        AllowedCPUs ay $(mask "$online") DefaultDependencies b no 0
    [[ -d $cgroups/user.slice ]] || systemctl start user.slice
}
