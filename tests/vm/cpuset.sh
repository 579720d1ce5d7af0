# Functions of the scenarios about the kernel's cpusets. Source this file after check.sh. The file does not use Pinfold.
# A cgroup's name is its path below $cgroups. The empty path is the root.
# shellcheck shell=bash

cgroups=/sys/fs/cgroup
export LC_ALL=C
shopt -s globstar
# The CPUs that are online at the start of the scenario.
online=$(</sys/devices/system/cpu/online)
processes=()
broken=()

# --- facts ---

# fact SUBJECT EXPECTED ACTUAL: like `equal`, but the scenario continues, so that one run finds all differences. The
# scenario ends with `settle`.
fact() {
    if [[ $2 == "$3" ]]; then
        echo "as expected: $1: ${3:-none}"
    else
        broken+=("DIFFERENT: $1: expected ${2:-none}, found ${3:-none}")
        echo "${broken[-1]}"
    fi
}

# Fails the scenario if a fact differed.
settle() {
    ((${#broken[@]})) || return 0
    printf '%s\n' "${broken[@]}"
    fail "${#broken[@]} facts differ on Linux $(uname -r)"
}

# since VERSION: whether the running kernel has this version or a newer version.
since() {
    [[ $(printf '%s\n' "$1" "$(uname -r)" | sort -V | sed -n 1p) == "$1" ]]
}

# --- lists of CPUs ---
# These functions start no programs, because the start of a program is slow under emulation.

# Adds the CPUs of a list to the caller's array `marked`.
mark() {
    local part cpu
    for part in ${1//,/ }; do
        for ((cpu = ${part%-*}; cpu <= ${part#*-}; cpu++)); do marked[cpu]=yes; done
    done
}

# Prints the CPUs of the caller's array `marked` as a list, for example 0-2,5.
marks() {
    local cpu first='' last='' text=
    for cpu in "${!marked[@]}"; do
        if [[ -n $first ]] && ((cpu == last + 1)); then
            last=$cpu
            continue
        fi
        [[ -z $first ]] || text+=,$first$( ((first == last)) || echo "-$last")
        first=$cpu last=$cpu
    done
    [[ -z $first ]] || text+=,$first$( ((first == last)) || echo "-$last")
    echo "${text#,}"
}

# Prints the union of the lists.
together() {
    local marked=() each
    for each in "$@"; do mark "$each"; done
    marks
}

# Prints the CPUs of the first list that are not in the second list.
without() {
    local marked=() part cpu
    mark "$1"
    for part in ${2//,/ }; do
        for ((cpu = ${part%-*}; cpu <= ${part#*-}; cpu++)); do unset "marked[cpu]"; done
    done
    marks
}

# Prints the intersection of two lists.
within_both() {
    without "$1" "$(without "$1" "$2")"
}

# --- cgroups ---

# put VALUE CGROUP FILE: writes a value to a cgroup's file. Prints ok or the error's name.
put() {
    local said
    if said=$({ printf '%s\n' "$1" >"$cgroups${2:+/$2}/$3"; } 2>&1); then
        echo ok
        return
    fi
    error "$said"
}

# Prints the name of an error message's error.
error() {
    case $1 in
    *"Invalid argument"*) echo EINVAL ;;
    *"No space left"*) echo ENOSPC ;;
    *"out of range"*) echo ERANGE ;;
    *"Permission denied"*) echo EACCES ;;
    *"resource busy"*) echo EBUSY ;;
    *"No such file"*) echo ENOENT ;;
    *) echo "$1" ;;
    esac
}

# These functions write a cgroup's file: cpus LIST CGROUP, exclusive LIST CGROUP, become STATE CGROUP.
cpus() { put "$1" "$2" cpuset.cpus; }
exclusive() { put "$1" "$2" cpuset.cpus.exclusive; }
become() { put "$1" "$2" cpuset.cpus.partition; }

# have CGROUP FILE: prints the first line of a cgroup's file.
have() {
    local text=
    read -r text <"$cgroups${1:+/$1}/$2" || true
    echo "$text"
}

partition() { have "$1" cpuset.cpus.partition; }
effective() { have "$1" cpuset.cpus.effective; }

# Prints a cgroup's partition state and effective CPUs.
force() {
    local state list
    read -r state <"$cgroups/$1/cpuset.cpus.partition"
    read -r list <"$cgroups/$1/cpuset.cpus.effective"
    echo "$state: $list"
}

# everyone CGROUP…: prints the effective CPUs of the root cgroup. Appends each of the cgroups whose CPUs differ, and this
# process if its allowed CPUs differ.
everyone() {
    local path root list seen
    read -r root <"$cgroups/cpuset.cpus.effective"
    seen=$root
    for path in "$@"; do
        read -r list <"$cgroups/$path/cpuset.cpus.effective"
        [[ $list == "$root" ]] || seen+=" $path:$list"
    done
    list=$(allowed $$)
    # The mask of a process in the root cgroup keeps offline CPUs.
    [[ $list == "$root" || $(within_both "$list" "$(</sys/devices/system/cpu/online)") == "$root" ]] || seen+=" process:$list"
    echo "$seen"
}

# Prints the ancestors of a cgroup without the root, from the top, and then the cgroup.
chain() {
    local path=
    local part
    for part in ${1//\// }; do
        path=${path:+$path/}$part
        echo "$path"
    done
}

# add_exclusive CGROUP LIST: adds CPUs to cpuset.cpus.exclusive of each ancestor from the top, and then of the cgroup.
# Prints each error.
add_exclusive() {
    local path said
    for path in $(chain "$1"); do
        said=$(exclusive "$(together "$2" "$(<"$cgroups/$path/cpuset.cpus.exclusive")")" "$path")
        [[ $said == ok ]] || echo "$path: $said"
    done
}

# own CGROUP LIST: makes a partition in the correct order. Prints each error and a wrong result; else nothing.
own() {
    local said
    add_exclusive "$1" "$2"
    said=$(become root "$1")
    [[ $said == ok ]] || echo "$1: $said"
    [[ $(force "$1") == "root: $2" ]] || echo "$1: $(force "$1")"
}

# Ends a partition in the correct order: writes `member`, then clears the leaf's cpuset.cpus.exclusive. Each ancestor keeps
# only the exclusive CPUs of its children, from the leaf up.
disown() {
    local path held child
    become member "$1" >/dev/null
    for path in $(chain "$1" | tac); do
        held=
        for child in "$cgroups/$path"/*/cpuset.cpus.exclusive; do
            [[ ! -e $child ]] || held=$(together "$held" "$(<"$child")")
        done
        exclusive "$held" "$path" >/dev/null
    done
}

# Prints the lost CPUs: online CPUs that are in neither the root cgroup nor a valid partition.
lost() {
    local file list state marked=()
    read -r list <"$cgroups/cpuset.cpus.effective"
    mark "$list"
    for file in "$cgroups"/*/**/cpuset.cpus.partition; do
        [[ -e $file ]] || continue
        read -r state <"$file"
        [[ $state == root ]] || continue
        read -r list <"${file%partition}effective"
        mark "$list"
    done
    without "$(</sys/devices/system/cpu/online)" "$(marks)"
}

# offline CPU and back CPU switch a CPU off and on. Both print ok or the error's name.
offline() { hotplug "$1" 0; }
back() { hotplug "$1" 1; }
hotplug() {
    local said
    if said=$({ echo "$2" >"/sys/devices/system/cpu/cpu$1/online"; } 2>&1); then echo ok; else error "$said"; fi
}

# --- processes ---

# Makes a cgroup whose children have the cpuset controller.
parent() {
    mkdir -p "$cgroups/$1"
    echo "+cpuset" >"$cgroups/$1/cgroup.subtree_control"
}

# Makes a cgroup with a process.
populated() {
    mkdir -p "$cgroups/$1"
    sleep 100000 &
    processes+=($!)
    echo $! >"$cgroups/$1/cgroup.procs"
}

# Prints the CPUs on which the kernel allows a process to run.
allowed() {
    local key value
    while read -r key value; do
        [[ $key != Cpus_allowed_list: ]] || echo "$value"
    done <"/proc/$1/status"
}

# Prints the CPUs on which the kernel allows the first process of a cgroup to run.
allowed_in() { allowed "$(have "$1" cgroup.procs)"; }

# Ends a cgroup's processes and removes the cgroup.
gone() {
    local process
    while read -r process; do
        kill -KILL "$process" || true
        wait "$process" 2>/dev/null || true
    done <"$cgroups/$1/cgroup.procs"
    until rmdir "$cgroups/$1" 2>/dev/null; do sleep 0.05; done
}

# Ends all processes that `populated` started, and removes the cgroups below a path.
clear_cgroups() {
    ((${#processes[@]} == 0)) || kill -KILL "${processes[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    [[ ! -d $cgroups/$1 ]] || find "$cgroups/$1" -depth -type d -exec rmdir {} + || true
}
