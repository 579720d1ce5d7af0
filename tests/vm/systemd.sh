# Functions of the scenarios on guests where systemd owns the cgroup tree. Source this file after check.sh and cpuset.sh.
# The functions make slices and scopes over D-Bus, as the kubelet and runc do. A unit's name is its cgroup's path. The file
# does not use Pinfold.
# shellcheck shell=bash

# Calls a method of systemd's manager.
manager() {
    busctl --quiet call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager "$@"
}

# Waits until PID 1 has written all earlier changes to the cgroups: PID 1 does so before the next request. After a
# daemon-reexec, PID 1 refuses requests for a while.
written() {
    until systemctl show -P Version >/dev/null 2>&1; do sleep 0.1; done
}

# Prints a list of CPUs as a D-Bus array of bytes: the number of bytes, and the bytes of the mask.
mask() {
    local marked=() bytes=() cpu
    mark "$1"
    for cpu in "${!marked[@]}"; do ((bytes[cpu / 8] |= 1 << cpu % 8)); done
    for ((cpu = 0; cpu < ${#bytes[@]} || cpu == 0; cpu++)); do : "${bytes[cpu]:=0}"; done
    echo "${#bytes[@]} ${bytes[*]}"
}

# slice PATH [PROPERTY TYPE VALUE…]: makes a slice like the kubelet's, with at most one additional property.
slice() {
    local path=$1
    shift
    manager StartTransientUnit 'ssa(sv)a(sa(sv))' "$(basename "$path")" replace $((1 + ($# > 0))) \
        DefaultDependencies b no "$@" 0
}

# scope PATH [yes|no [PROPERTY TYPE VALUE…]]: makes a scope with a process and at most one additional property. The second
# argument is Delegate, which is yes for containers and by default.
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

# Stops a unit and waits until its cgroup is gone.
ended() {
    systemctl stop "$(basename "$1")"
    while [[ -d $cgroups/$1 ]]; do sleep 0.05; done
}

# again PATH…: stops a scope and makes the scope again, with the arguments of `scope`.
again() {
    ended "$1"
    scope "$@"
}

# property PATH PROPERTY=VALUE: sets a unit's property until the next boot. An empty value of AllowedCPUs resets AllowedCPUs.
property() { systemctl set-property --runtime "$(basename "$1")" "$2"; }

# units_come_and_go SLICE: starts and stops a unit, runs a second unit in the slice, and restarts a third unit.
units_come_and_go() {
    systemd-run --quiet --unit=come-and-go sleep 100000
    systemctl stop come-and-go
    systemd-run --quiet --wait --slice="$(basename "$1")" true
    systemctl restart systemd-journald
}

# Makes kubepods.slice like the kubelet's, and user.slice, which a login would make.
nodes_slices() {
    manager StartTransientUnit 'ssa(sv)a(sa(sv))' kubepods.slice replace 2 \
        AllowedCPUs ay $(mask "$online") DefaultDependencies b no 0
    [[ -d $cgroups/user.slice ]] || systemctl start user.slice
}
