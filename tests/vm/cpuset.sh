# What the scenarios about the kernel's cpusets share; they source it after check.sh. Nothing here knows Pinfold.
# Cgroups are named by their path below $cgroups; the empty path is the root.
# shellcheck shell=bash

cgroups=/sys/fs/cgroup
export LC_ALL=C
shopt -s globstar
# Everything here is about these CPUs: those that are online at the start.
online=$(</sys/devices/system/cpu/online)
processes=()
broken=()

# --- facts ---

# fact WHAT WANTED SEEN: like `equal`, but goes on, so that one run names all that is otherwise; `settle` ends it.
fact() {
    if [[ $2 == "$3" ]]; then
        echo "so: $1: ${3:-none}"
    else
        broken+=("NOT SO: $1: should be ${2:-none}, is ${3:-none}")
        echo "${broken[-1]}"
    fi
}

settle() {
    ((${#broken[@]})) || return 0
    printf '%s\n' "${broken[@]}"
    fail "${#broken[@]} facts are otherwise on Linux $(uname -r)"
}

# Whether this kernel is of this version or a later one.
since() {
    [[ $(printf '%s\n' "$1" "$(uname -r)" | sort -V | sed -n 1p) == "$1" ]]
}

# --- lists of CPUs ---
# Without programs: under emulation, to start one takes longer than anything else here.

# Marks the CPUs of a list in the caller's array `marked`.
mark() {
    local part cpu
    for part in ${1//,/ }; do
        for ((cpu = ${part%-*}; cpu <= ${part#*-}; cpu++)); do marked[cpu]=yes; done
    done
}

# The CPUs in the caller's array `marked`, as a list like 0-2,5.
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

# Several lists as one.
together() {
    local marked=() each
    for each in "$@"; do mark "$each"; done
    marks
}

# The CPUs of the first list that are not in the second.
without() {
    local marked=() part cpu
    mark "$1"
    for part in ${2//,/ }; do
        for ((cpu = ${part%-*}; cpu <= ${part#*-}; cpu++)); do unset "marked[cpu]"; done
    done
    marks
}

# The CPUs of both lists.
within_both() {
    without "$1" "$(without "$1" "$2")"
}

# --- cgroups ---

# put VALUE CGROUP FILE: writes, and prints ok or the error's name.
put() {
    local said
    if said=$({ printf '%s\n' "$1" >"$cgroups${2:+/$2}/$3"; } 2>&1); then
        echo ok
        return
    fi
    error "$said"
}

# An error's name for its text.
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

cpus() { put "$1" "$2" cpuset.cpus; }
exclusive() { put "$1" "$2" cpuset.cpus.exclusive; }
# Partition state, as it is to be: root or member.
become() { put "$1" "$2" cpuset.cpus.partition; }

# have CGROUP FILE: what stands there.
have() {
    local text=
    read -r text <"$cgroups${1:+/$1}/$2" || true
    echo "$text"
}

partition() { have "$1" cpuset.cpus.partition; }
effective() { have "$1" cpuset.cpus.effective; }

# What is in force at a cgroup, in one line: its partition file, and its CPUs.
force() {
    local state list
    read -r state <"$cgroups/$1/cpuset.cpus.partition"
    read -r list <"$cgroups/$1/cpuset.cpus.effective"
    echo "$state: $list"
}

# everyone CGROUP…: the CPUs of the root, of these cgroups and of this process, if they are the same, or what differs.
everyone() {
    local path root list seen
    read -r root <"$cgroups/cpuset.cpus.effective"
    seen=$root
    for path in "$@"; do
        read -r list <"$cgroups/$path/cpuset.cpus.effective"
        [[ $list == "$root" ]] || seen+=" $path:$list"
    done
    list=$(allowed $$)
    # The mask of a process in the root cgroup keeps CPUs that are offline.
    [[ $list == "$root" || $(within_both "$list" "$(</sys/devices/system/cpu/online)") == "$root" ]] || seen+=" process:$list"
    echo "$seen"
}

# The cgroup and its ancestors without the root, from the top.
chain() {
    local path=
    local part
    for part in ${1//\// }; do
        path=${path:+$path/}$part
        echo "$path"
    done
}

# Writes `exclusive` from the top to the leaf, each ancestor widened by what it has.
claim() {
    local path said
    for path in $(chain "$1"); do
        said=$(exclusive "$(together "$2" "$(<"$cgroups/$path/cpuset.cpus.exclusive")")" "$path")
        [[ $said == ok ]] || echo "$path: $said"
    done
}

# A partition, made as it should be; prints what went wrong, or nothing.
own() {
    local said
    claim "$1" "$2"
    said=$(become root "$1")
    [[ $said == ok ]] || echo "$1: $said"
    [[ $(force "$1") == "root: $2" ]] || echo "$1: $(force "$1")"
}

# The end of a partition as it should be, from the leaf up: `member`, its `exclusive`, then its ancestors', each down to
# what its children still hold.
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

# Online CPUs that nobody may use: neither in the root's effective set nor in a live partition's.
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

# offline CPU, and back CPU: print ok or the error's name.
offline() { hotplug "$1" 0; }
back() { hotplug "$1" 1; }
hotplug() {
    local said
    if said=$({ echo "$2" >"/sys/devices/system/cpu/cpu$1/online"; } 2>&1); then echo ok; else error "$said"; fi
}

# --- processes ---

# A cgroup whose children have the cpuset controller.
parent() {
    mkdir -p "$cgroups/$1"
    echo "+cpuset" >"$cgroups/$1/cgroup.subtree_control"
}

# A cgroup with a process in it.
populated() {
    mkdir -p "$cgroups/$1"
    sleep 100000 &
    processes+=($!)
    echo $! >"$cgroups/$1/cgroup.procs"
}

# What the kernel lets a process run on.
allowed() {
    local key value
    while read -r key value; do
        [[ $key != Cpus_allowed_list: ]] || echo "$value"
    done <"/proc/$1/status"
}

# The same for the first process of a cgroup.
allowed_in() { allowed "$(have "$1" cgroup.procs)"; }

# Ends a cgroup's processes and removes it.
gone() {
    local process
    while read -r process; do
        kill -KILL "$process" || true
        wait "$process" 2>/dev/null || true
    done <"$cgroups/$1/cgroup.procs"
    until rmdir "$cgroups/$1" 2>/dev/null; do sleep 0.05; done
}

# Ends every process of `populated` and removes the cgroups under a path.
clear_cgroups() {
    ((${#processes[@]} == 0)) || kill -KILL "${processes[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    [[ ! -d $cgroups/$1 ]] || find "$cgroups/$1" -depth -type d -exec rmdir {} + || true
}
