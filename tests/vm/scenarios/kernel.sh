# The kernel's behaviour with cpusets, observed by plain writes without Pinfold. Kernels since Linux 6.7 have remote
# partitions. On older kernels, the scenario tests `cpuset.cpus` without partitions. Pinfold's enforcement depends on these
# facts.
# vm: small
source tests/vm/check.sh
source tests/vm/cpuset.sh
trap 'clear_cgroups kubepods' EXIT

owner=kubepods/podA/main
sandbox=kubepods/podA/sandbox
second=kubepods/podB/main
third=kubepods/besteffort/podC/main
mine=2-3
theirs=4-5
rest=$(without "$online" "$mine")
# Linux 7.2 behaves differently from 6.12. The versions between them were not tested.
new=no
! since 7.2 || new=yes
members=(kubepods "${owner%/*}" "$sandbox" "${second%/*}" "$second" kubepods/besteffort "${third%/*}" "$third")

echo "+cpuset" >"$cgroups/cgroup.subtree_control"
for path in kubepods "${owner%/*}" "${second%/*}" kubepods/besteffort "${third%/*}"; do parent "$path"; done
for path in "$owner" "$sandbox" "$second" "$third"; do populated "$path"; done

# Prints the number of kernel threads that may run on CPU 2 and on at least one more CPU. A thread may end between the shell's
# list of files and the reading: `cat` goes on without it, and awk, which reads a pipe, does not fail.
kernel_threads() {
    { cat /proc/[0-9]*/status 2>/dev/null || true; } |
        awk '$1 == "Name:" { parent = 0 } $1 == "PPid:" { parent = $2 }
            $1 == "Cpus_allowed_list:" && parent == 2 && $2 ~ /[-,]/ {
                n = split($2, parts, ",")
                for (i = 1; i <= n; i++) { m = split(parts[i], ends, "-"); if (ends[1] <= 2 && ends[m] >= 2) count++ }
            } END { print count + 0 }'
}

creation() {
    echo "# creation"
    local path before after
    before=$(kernel_threads)
    for path in $(chain "$owner"); do
        fact "exclusive, from the top: $path" ok "$(exclusive "$mine" "$path")"
    done
    fact "CPUs of all cgroups after exclusive and before root" "$online" "$(everyone "${members[@]}")"
    fact "exclusive.effective of the leaf" "$mine" "$(<"$cgroups/$owner/cpuset.cpus.exclusive.effective")"
    fact "root on the leaf" ok "$(become root "$owner")"
    fact "state of the leaf" "root: $mine" "$(force "$owner")"
    fact "allowed CPUs of the leaf's process" "$mine" "$(allowed_in "$owner")"
    fact "CPUs of all others: the root cgroup, kubepods, the owner's pod and sandbox, other pods, this process" "$rest" "$(everyone "${members[@]}")"
    fact "partition state of the owner's pod" member "$(partition "${owner%/*}")"
    fact "cpuset.cpus of the leaf" "" "$(<"$cgroups/$owner/cpuset.cpus")"
    after=$(kernel_threads)
    echo "kernel threads for several CPUs that may run on CPU 2: $before before the partition, $after now"
    fact "some of these kernel threads leave CPU 2 (not since 7.2)" "$( [[ $new == yes ]] && echo no || echo yes)" "$( ((after < before)) && echo yes || echo no)"
}

foreign_writes() {
    echo "# foreign writes of cpuset.cpus"
    local value
    for value in "$theirs" 2 0 "$online"; do
        fact "cpuset.cpus=$value on the leaf" ok "$(cpus "$value" "$owner")"
        fact "state of the leaf then" "root: $mine" "$(force "$owner")"
        fact "allowed CPUs of the owner's process" "$mine" "$(allowed_in "$owner")"
    done
    fact "cpuset.cpus=$rest on its pod" ok "$(cpus "$rest" "${owner%/*}")"
    fact "cpuset.cpus=$rest on kubepods" ok "$(cpus "$rest" kubepods)"
    fact "state of the leaf below ancestors without its CPUs" "root: $mine" "$(force "$owner")"
    fact "member, then root again below ancestors without the leaf's CPUs" "ok ok" "$(become member "$owner") $(become root "$owner")"
    fact "state of the leaf then" "root: $mine" "$(force "$owner")"
    fact "kubepods and the pod get all CPUs again" "ok ok" "$(cpus "$online" kubepods) $(cpus "$online" "${owner%/*}")"
    fact "state of the leaf then" "root: $mine" "$(force "$owner")"
    fact "CPUs of all other cgroups then" "$rest" "$(everyone "${members[@]}")"
}

second_owner() {
    echo "# a second owner of a CPU"
    fact "exclusive=2-4 on kubepods" ok "$(exclusive 2-4 kubepods)"
    fact "exclusive=3-4 on the second pod" EINVAL "$(exclusive 3-4 "${second%/*}")"
    fact "exclusive=3-4 on the second pod's leaf" ok "$(exclusive 3-4 "$second")"
    fact "root on the second pod's leaf" ok "$(become root "$second")"
    fact "state of the second leaf" "root invalid (Invalid cpu list in cpuset.cpus.exclusive): $rest" "$(force "$second")"
    fact "state of the first partition" "root: $mine" "$(force "$owner")"
    fact "member, exclusive cleared on the second leaf, exclusive=$mine on kubepods" "ok ok ok" "$(become member "$second") $(exclusive "" "$second") $(exclusive "$mine" kubepods)"
    fact "cpuset.cpus=$mine on a member, where the first partition has all these CPUs" ok "$(cpus "$mine" "$second")"
    fact "the member falls back to its parent's CPUs" "member: $rest" "$(force "$second")"
    fact "state of the first partition" "root: $mine" "$(force "$owner")"
    fact "the member gets all CPUs again" ok "$(cpus "$online" "$second")"
    fact "a second partition beside the first" "" "$(own "$second" "$theirs")"
    fact "state of the first partition" "root: $mine" "$(force "$owner")"
    fact "CPUs of the root cgroup" "$(without "$rest" "$theirs")" "$(effective "")"
    disown "$second"
    fact "state of the second leaf after the end of its partition" "member: $rest" "$(force "$second")"
    fact "state of the first partition after the end of the second partition" "root: $mine" "$(force "$owner")"
    fact "exclusive of kubepods then" "$mine" "$(<"$cgroups/kubepods/cpuset.cpus.exclusive")"
}

changes() {
    echo "# a valid partition grows, shrinks and swaps its CPUs"
    local path
    for path in $(chain "$owner"); do
        fact "growth, from the top: $path" ok "$(exclusive 2-4 "$path")"
    done
    fact "state of the leaf after the growth" "root: 2-4" "$(force "$owner")"
    fact "allowed CPUs of the owner's process" 2-4 "$(allowed_in "$owner")"
    for path in $(chain "$owner" | tac); do
        fact "shrinkage, from the leaf: $path" ok "$(exclusive "$mine" "$path")"
        fact "state of the leaf meanwhile" "root: $mine" "$(force "$owner")"
    done
    for path in kubepods "${owner%/*}"; do
        fact "swap: widening $path" ok "$(exclusive 2-5 "$path")"
    done
    fact "swap: the leaf" ok "$(exclusive "$theirs" "$owner")"
    fact "state of the leaf immediately after the write" "root: $theirs" "$(force "$owner")"
    for path in "${owner%/*}" kubepods; do
        fact "swap: narrowing $path" ok "$(exclusive "$theirs" "$path")"
    done
    fact "state of the leaf after the swap" "root: $theirs" "$(force "$owner")"
    fact "allowed CPUs of the owner's process" "$theirs" "$(allowed_in "$owner")"
    fact "CPUs of all other cgroups" "$(without "$online" "$theirs")" "$(everyone "${members[@]}")"
    add_exclusive "$owner" "$mine"
    exclusive "$mine" "$owner" >/dev/null
    for path in "${owner%/*}" kubepods; do exclusive "$mine" "$path" >/dev/null; done
    fact "state of the leaf after a swap back" "root: $mine" "$(force "$owner")"
    fact "CPUs of all other cgroups" "$rest" "$(everyone "${members[@]}")"
    fact "lost CPUs" "" "$(lost)"
}

affinity() {
    echo "# affinity"
    local said
    said=$(taskset -c 2 true 2>&1) || said=$(error "$said")
    fact "an outside process's sched_setaffinity to a CPU of the partition" EINVAL "$said"
    fact "an outside process's sched_setaffinity to CPU 2 of the partition and to shared CPU 1" 1 \
        "$(taskset -c 1-2 awk '$1 == "Cpus_allowed_list:" { print $2 }' /proc/self/status)"
    fact "an outside process's sched_setaffinity to a shared CPU" 1 \
        "$(taskset -c 1 awk '$1 == "Cpus_allowed_list:" { print $2 }' /proc/self/status)"
}

offline_and_back() {
    echo "# CPUs that go offline"
    fact "CPU 3 of the owner's CPUs goes offline" ok "$(offline 3)"
    fact "state" "root: 2, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "CPU 3 comes back" ok "$(back 3)"
    fact "state" "root: $mine, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "the shared CPU 6 goes offline" ok "$(offline 6)"
    fact "state" "root: $mine, shared $(without "$rest" 6)" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "CPU 6 comes back" ok "$(back 6)"
    fact "state" "root: $mine, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "CPU 2 of the owner's CPUs goes offline" ok "$(offline 2)"
    if [[ $new == no ]]; then
        fact "the kernel keeps the owner's last CPU 3 online" EBUSY "$(offline 3)"
        fact "state" "root: 3, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
        fact "CPU 2 comes back" ok "$(back 2)"
        fact "state" "root: $mine, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
        fact "allowed CPUs of the owner's process" "$mine" "$(allowed_in "$owner")"
        return
    fi
    fact "the owner's last CPU 3 goes offline" ok "$(offline 3)"
    fact "state" "root invalid (No cpu available due to hotplug): $rest, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "allowed CPUs of the owner's sleeping process, which the kernel does not move" 3 "$(allowed_in "$owner")"
    fact "CPU 3 comes back with the partition invalid" ok "$(back 3)"
    fact "state" "root invalid (No cpu available due to hotplug): $(together "$rest" 3), shared $(together "$rest" 3)" \
        "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "CPU 2 comes back with the partition invalid" ok "$(back 2)"
    fact "the partition stays invalid" "root invalid (No cpu available due to hotplug): $online, shared $online" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "allowed CPUs of the owner's process" "$online" "$(allowed_in "$owner")"
    fact "lost CPUs" "" "$(lost)"
    fact "member, then root" "ok ok" "$(become member "$owner") $(become root "$owner")"
    fact "state then" "root: $mine, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
}

# with_capabilities SET COMMAND: runs a command in a shell whose bounding set is changed by SET, in the notation of setpriv.
with_capabilities() {
    setpriv --bounding-set "$1" -- sh -c "$2" 2>&1
}

capabilities() {
    echo "# capabilities"
    disown "$owner"
    add_exclusive "$owner" "$mine"
    fact "root without CAP_SYS_ADMIN: no error" "" \
        "$(with_capabilities -sys_admin "echo root >$cgroups/$owner/cpuset.cpus.partition")"
    fact "state then" "root invalid (Enable partition not permitted): $online" "$(force "$owner")"
    fact "member without CAP_SYS_ADMIN: no error" "" "$(with_capabilities -sys_admin "echo member >$cgroups/$owner/cpuset.cpus.partition")"
    fact "root with CAP_SYS_ADMIN alone" "" \
        "$(with_capabilities -all,+sys_admin "echo root >$cgroups/$owner/cpuset.cpus.partition")"
    fact "state then" "root: $mine" "$(force "$owner")"
    fact "exclusive on a valid partition without CAP_SYS_ADMIN: no error" "" \
        "$(with_capabilities -sys_admin "echo 3 >$cgroups/$owner/cpuset.cpus.exclusive")"
    fact "state of the leaf: a change of a valid partition needs no capability" "root: 3" "$(force "$owner")"
    exclusive "$mine" "$owner" >/dev/null
    fact "state of the leaf after exclusive=$mine" "root: $mine" "$(force "$owner")"
    disown "$owner"
    fact "CPUs of all cgroups after the end of the partition" "$online" "$(everyone "${members[@]}")"
}

invalid() {
    gone "$owner"
    populated "$owner"
    echo "# writes without an error and without an effect"
    fact "exclusive and root on the leaf, without exclusive on the ancestors" "ok ok" "$(exclusive "$mine" "$owner") $(become root "$owner")"
    fact "state of the leaf" "root invalid (Invalid cpu list in cpuset.cpus.exclusive): $online" "$(force "$owner")"
    fact "CPUs of all cgroups" "$online" "$(everyone "${members[@]}")"
    fact "exclusive on the ancestors afterwards" "ok ok" "$(exclusive "$mine" kubepods) $(exclusive "$mine" "${owner%/*}")"
    fact "exclusive on the leaf again" ok "$(exclusive "$mine" "$owner")"
    fact "the partition stays invalid" "root invalid (Parent is not a partition root): $online" "$(force "$owner")"
    fact "root again" ok "$(become root "$owner")"
    fact "the partition is valid" "root: $mine" "$(force "$owner")"
    disown "$owner"
    fact "exclusive on kubepods and on the leaf but not on the pod, then root" "ok ok ok" "$(exclusive "$mine" kubepods) $(exclusive "$mine" "$owner") $(become root "$owner")"
    fact "state of the leaf" "root invalid (Invalid cpu list in cpuset.cpus.exclusive): $online" "$(force "$owner")"
    disown "$owner"
    fact "root without exclusive on any cgroup" ok "$(become root "$owner")"
    fact "state of the leaf" "root invalid (cpuset.cpus and cpuset.cpus.exclusive are empty): $online" "$(force "$owner")"
    become member "$owner" >/dev/null
    add_exclusive "$owner" "$online"
    fact "root with exclusive of all CPUs, including the last shared CPU" ok "$(become root "$owner")"
    fact "state of the leaf" "root invalid (Invalid cpu list in cpuset.cpus.exclusive): $online" "$(force "$owner")"
    fact "CPUs of all cgroups" "$online" "$(everyone "${members[@]}")"
    disown "$owner"
    fact "a valid partition, which then grows to all CPUs" "" "$(own "$owner" "$mine")"
    add_exclusive "$owner" "$online"
    fact "state after the growth" "root invalid (Parent is not a partition root): $online, shared $online" "$(force "$owner"), shared $(effective "")"
    disown "$owner"
    fact "CPUs of all cgroups" "$online" "$(everyone "${members[@]}")"
    fact "lost CPUs" "" "$(lost)"
}

# beside LIST: makes a partition beside a sibling in the same pod whose cpuset.cpus intersects the partition. Before 7.2,
# the partition is invalid.
beside() {
    local wanted="root: $mine"
    [[ $new == yes ]] || wanted="root invalid (Cpu list in cpuset.cpus not exclusive): $online"
    cpus "$1" "$sandbox" >/dev/null
    fact "exclusive and root beside a sibling with cpuset.cpus=$1" "ok ok" "$(exclusive "$mine" "$owner") $(become root "$owner")"
    fact "state of the leaf" "$wanted" "$(force "$owner")"
    become member "$owner" >/dev/null
    exclusive "" "$owner" >/dev/null
}

errors() {
    gone "$owner"
    populated "$owner"
    echo "# writes with an error"
    local beyond=$(($(getconf _NPROCESSORS_CONF) + 91))
    fact "cpuset.cpus=$theirs on a populated cgroup" ok "$(cpus "$theirs" "$third")"
    if [[ $new == no ]]; then
        fact "cpuset.cpus of the populated cgroup cleared" "ENOSPC, effective $theirs" "$(cpus "" "$third"), effective $(effective "$third")"
    else
        fact "cpuset.cpus of the populated cgroup cleared" "ok, effective $online" "$(cpus "" "$third"), effective $(effective "$third")"
    fi
    fact "cpuset.cpus of all CPUs on the populated cgroup" ok "$(cpus "$online" "$third")"
    fact "exclusive of a CPU that does not exist" ERANGE "$(exclusive $beyond kubepods)"
    fact "cpuset.cpus of a CPU that does not exist" ERANGE "$(cpus $beyond "$third")"
    fact "exclusive=abc" EINVAL "$(exclusive abc kubepods)"
    fact "cpuset.cpus.partition=roots" EINVAL "$(become roots "$owner")"
    fact "exclusive that a sibling has" "ok EINVAL EINVAL" \
        "$(exclusive "$mine" "${owner%/*}") $(exclusive "$mine" "${second%/*}") $(exclusive 3-5 "${second%/*}")"
    fact "a write of zero bytes" "$mine" \
        "$(perl -e 'open(my $f, "+<", $ARGV[0]); syswrite($f, "")' "$cgroups/${owner%/*}/cpuset.cpus.exclusive"; cat "$cgroups/${owner%/*}/cpuset.cpus.exclusive")"
    fact "a newline clears exclusive" "ok: " "$(exclusive "" "${owner%/*}"): $(<"$cgroups/${owner%/*}/cpuset.cpus.exclusive")"
    exclusive "$mine" kubepods >/dev/null
    exclusive "$mine" "${owner%/*}" >/dev/null
    fact "a sibling in the same pod with cpuset.cpus=$mine" ok "$(cpus "$mine" "$sandbox")"
    fact "exclusive=$mine on the leaf beside this sibling" EINVAL "$(exclusive "$mine" "$owner")"
    beside 3-4
    beside "$online"
    disown "$owner"
    gone "$sandbox"
    populated "$sandbox"
    fact "CPUs of all cgroups" "$online" "$(everyone "${members[@]}")"
}

ends() {
    echo "# the end of a partition with its cgroup"
    fact "a partition" "" "$(own "$owner" "$mine")"
    gone "$owner"
    fact "CPUs of all cgroups after the removal of the leaf" "$online" "$(everyone "${members[@]}")"
    fact "exclusive of the ancestors" "$mine $mine" \
        "$(<"$cgroups/kubepods/cpuset.cpus.exclusive") $(<"$cgroups/${owner%/*}/cpuset.cpus.exclusive")"
    populated "$owner"
    fact "state of a new leaf with the same path" "member: $online" "$(force "$owner")"
    fact "exclusive and root on the new leaf" "ok ok" "$(exclusive "$mine" "$owner") $(become root "$owner")"
    fact "state" "root: $mine" "$(force "$owner")"
    gone "$owner"
    gone "$sandbox"
    rmdir "$cgroups/${owner%/*}"
    fact "exclusive of kubepods after the removal of the pod" "$mine" "$(<"$cgroups/kubepods/cpuset.cpus.exclusive")"
    fact "a partition of the same CPUs in a second pod" "" "$(own "$second" "$mine")"
    disown "$second"
    fact "exclusive of kubepods at the end" "" "$(<"$cgroups/kubepods/cpuset.cpus.exclusive")"
    fact "CPUs of the root at the end" "$online" "$(effective "")"
    fact "lost CPUs" "" "$(lost)"
}

bare() {
    echo "# cpuset.cpus without partitions: Linux before 6.7"
    fact "cpuset.cpus.exclusive" missing "$([[ -e $cgroups/$owner/cpuset.cpus.exclusive ]] && echo exists || echo missing)"
    fact "cpuset.cpus=$mine on the leaf" ok "$(cpus "$mine" "$owner")"
    fact "state of the leaf" "member: $mine" "$(force "$owner")"
    fact "allowed CPUs of the owner's process" "$mine" "$(allowed_in "$owner")"
    fact "CPUs of all other cgroups" "$online" "$(everyone "${members[@]}")"
    fact "cpuset.cpus=$theirs on the leaf" ok "$(cpus "$theirs" "$owner")"
    fact "state of the leaf then" "member: $theirs" "$(force "$owner")"
    cpus "$mine" "$owner" >/dev/null
    fact "cpuset.cpus=$mine on the second leaf" ok "$(cpus "$mine" "$second")"
    fact "the second leaf has the same CPUs" "member: $mine" "$(force "$second")"
    fact "cpuset.cpus=$theirs on the pod" ok "$(cpus "$theirs" "${owner%/*}")"
    fact "a leaf without a CPU of its pod falls back to the pod's CPUs" "member: $theirs" "$(force "$owner")"
    fact "cpuset.cpus of all CPUs on the pod" ok "$(cpus "$online" "${owner%/*}")"
    fact "the leaf has its CPUs again" "member: $mine" "$(force "$owner")"
    fact "CPU 3 of the leaf goes offline" ok "$(offline 3)"
    fact "state of the leaf with CPU 3 offline" "member: 2" "$(force "$owner")"
    fact "CPU 2 of the leaf goes offline" ok "$(offline 2)"
    fact "with both CPUs offline, the leaf falls back to the pod's CPUs" "member: $rest" "$(force "$owner")"
    fact "CPU 2 comes back" ok "$(back 2)"
    fact "state of the leaf with CPU 2" "member: 2" "$(force "$owner")"
    fact "CPU 3 comes back" ok "$(back 3)"
    fact "state of the leaf with both CPUs" "member: $mine" "$(force "$owner")"
    fact "cpuset.cpus of the leaf" "$mine" "$(<"$cgroups/$owner/cpuset.cpus")"
    fact "an outside process's sched_setaffinity to a CPU of the leaf" 2 "$(taskset -c 2 awk '$1 == "Cpus_allowed_list:" { print $2 }' /proc/self/status)"
    fact "root on the leaf" ok "$(become root "$owner")"
    fact "state of the leaf" "root invalid (Parent is not a partition root): $mine" "$(force "$owner")"
    become member "$owner" >/dev/null
    fact "cpuset.cpus of the populated leaf cleared" ENOSPC "$(cpus "" "$owner")"
    fact "cpuset.cpus of all CPUs on the leaf" ok "$(cpus "$online" "$owner")"
    fact "cpuset.cpus of a CPU that does not exist" ERANGE "$(cpus $(($(getconf _NPROCESSORS_CONF) + 91)) "$owner")"
    fact "cpuset.cpus=abc" EINVAL "$(cpus abc "$owner")"
    cpus "$online" "$second" >/dev/null
    fact "CPUs of all cgroups" "$online" "$(everyone "${members[@]}")"
}

if since 6.7; then
    creation
    foreign_writes
    second_owner
    changes
    affinity
    offline_and_back
    capabilities
    invalid
    errors
    ends
else
    bare
fi
settle
