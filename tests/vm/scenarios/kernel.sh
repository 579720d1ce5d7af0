# What the kernel itself does with cpusets, by plain writes and without Pinfold: remote partitions where it has them (from
# Linux 6.7 on), else bare `cpuset.cpus`. Pinfold's enforcement stands on these facts.
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
# What is otherwise from 7.2 on; where between 6.12 and 7.2 it changed has not been tried.
new=no
! since 7.2 || new=yes
members=(kubepods "${owner%/*}" "$sandbox" "${second%/*}" "$second" kubepods/besteffort "${third%/*}" "$third")

echo "+cpuset" >"$cgroups/cgroup.subtree_control"
for path in kubepods "${owner%/*}" "${second%/*}" kubepods/besteffort "${third%/*}"; do parent "$path"; done
for path in "$owner" "$sandbox" "$second" "$third"; do populated "$path"; done

# How many kernel threads may run on CPU 2 and elsewhere, too.
kernel_threads() {
    awk 'FNR == 1 { parent = 0 } $1 == "PPid:" { parent = $2 }
        $1 == "Cpus_allowed_list:" && parent == 2 && $2 ~ /[-,]/ {
            n = split($2, parts, ",")
            for (i = 1; i <= n; i++) { m = split(parts[i], ends, "-"); if (ends[1] <= 2 && ends[m] >= 2) count++ }
        } END { print count + 0 }' /proc/[0-9]*/status 2>/dev/null
}

creation() {
    echo "# creation"
    local path before after
    before=$(kernel_threads)
    for path in $(chain "$owner"); do
        fact "exclusive, from the top: $path" ok "$(exclusive "$mine" "$path")"
    done
    fact "CPUs of everyone while exclusive alone is written" "$online" "$(everyone "${members[@]}")"
    fact "the leaf's exclusive.effective then" "$mine" "$(<"$cgroups/$owner/cpuset.cpus.exclusive.effective")"
    fact "root on the leaf" ok "$(become root "$owner")"
    fact "in force at the leaf" "root: $mine" "$(force "$owner")"
    fact "the leaf's process may run on" "$mine" "$(allowed_in "$owner")"
    fact "CPUs of everyone else: root, kubepods, its own pod, its sandbox, other pods, processes outside" "$rest" "$(everyone "${members[@]}")"
    fact "the owner's pod stays" member "$(partition "${owner%/*}")"
    fact "cpuset.cpus of the leaf stays empty" "" "$(<"$cgroups/$owner/cpuset.cpus")"
    after=$(kernel_threads)
    echo "seen: kernel threads for several CPUs that may run on CPU 2: $before before, $after now"
    fact "some of those leave it (not from 7.2 on)" "$( [[ $new == yes ]] && echo no || echo yes)" "$( ((after < before)) && echo yes || echo no)"
}

foreign_writes() {
    echo "# foreign writes of cpuset.cpus"
    local value
    for value in "$theirs" 2 0 "$online"; do
        fact "cpuset.cpus=$value on the leaf" ok "$(cpus "$value" "$owner")"
        fact "in force at the leaf then" "root: $mine" "$(force "$owner")"
        fact "its process may run on" "$mine" "$(allowed_in "$owner")"
    done
    fact "cpuset.cpus=$rest on its pod" ok "$(cpus "$rest" "${owner%/*}")"
    fact "cpuset.cpus=$rest on kubepods" ok "$(cpus "$rest" kubepods)"
    fact "in force at the leaf, ancestors without its CPUs" "root: $mine" "$(force "$owner")"
    fact "member, then root again below such ancestors" "ok ok" "$(become member "$owner") $(become root "$owner")"
    fact "in force at the leaf then" "root: $mine" "$(force "$owner")"
    fact "kubepods and the pod get all CPUs again" "ok ok" "$(cpus "$online" kubepods) $(cpus "$online" "${owner%/*}")"
    fact "in force at the leaf still" "root: $mine" "$(force "$owner")"
    fact "CPUs of everyone else still" "$rest" "$(everyone "${members[@]}")"
}

second_owner() {
    echo "# a second owner of a CPU"
    fact "widening kubepods for it" ok "$(exclusive 2-4 kubepods)"
    fact "exclusive=3-4 on the second pod" EINVAL "$(exclusive 3-4 "${second%/*}")"
    fact "exclusive=3-4 on its leaf all the same" ok "$(exclusive 3-4 "$second")"
    fact "root on its leaf" ok "$(become root "$second")"
    fact "in force at the second leaf" "root invalid (Invalid cpu list in cpuset.cpus.exclusive): $rest" "$(force "$second")"
    fact "the first partition" "root: $mine" "$(force "$owner")"
    fact "undone" "ok ok ok" "$(become member "$second") $(exclusive "" "$second") $(exclusive "$mine" kubepods)"
    fact "cpuset.cpus=$mine, wholly taken, on a member" ok "$(cpus "$mine" "$second")"
    fact "the member falls back to its parent's CPUs" "member: $rest" "$(force "$second")"
    fact "the first partition" "root: $mine" "$(force "$owner")"
    fact "the member gets all CPUs again" ok "$(cpus "$online" "$second")"
    fact "a second partition beside the first" "" "$(own "$second" "$theirs")"
    fact "the first partition" "root: $mine" "$(force "$owner")"
    fact "CPUs of all others" "$(without "$rest" "$theirs")" "$(effective "")"
    disown "$second"
    fact "the second one given back" "member: $rest" "$(force "$second")"
    fact "and the first untouched" "root: $mine" "$(force "$owner")"
    fact "kubepods' exclusive then" "$mine" "$(<"$cgroups/kubepods/cpuset.cpus.exclusive")"
}

changes() {
    echo "# growth, shrinkage, swap, in place"
    local path
    for path in $(chain "$owner"); do
        fact "growth, from the top: $path" ok "$(exclusive 2-4 "$path")"
    done
    fact "in force after growth" "root: 2-4" "$(force "$owner")"
    fact "its process may run on" 2-4 "$(allowed_in "$owner")"
    for path in $(chain "$owner" | tac); do
        fact "shrinkage, from the leaf: $path" ok "$(exclusive "$mine" "$path")"
        fact "in force meanwhile" "root: $mine" "$(force "$owner")"
    done
    for path in kubepods "${owner%/*}"; do
        fact "swap: widening $path" ok "$(exclusive 2-5 "$path")"
    done
    fact "swap: the leaf" ok "$(exclusive "$theirs" "$owner")"
    fact "in force at once" "root: $theirs" "$(force "$owner")"
    for path in "${owner%/*}" kubepods; do
        fact "swap: narrowing $path" ok "$(exclusive "$theirs" "$path")"
    done
    fact "in force after the swap" "root: $theirs" "$(force "$owner")"
    fact "its process may run on" "$theirs" "$(allowed_in "$owner")"
    fact "CPUs of everyone else" "$(without "$online" "$theirs")" "$(everyone "${members[@]}")"
    add_exclusive "$owner" "$mine"
    exclusive "$mine" "$owner" >/dev/null
    for path in "${owner%/*}" kubepods; do exclusive "$mine" "$path" >/dev/null; done
    fact "swapped back" "root: $mine" "$(force "$owner")"
    fact "CPUs of everyone else" "$rest" "$(everyone "${members[@]}")"
    fact "CPUs that nobody has" "" "$(lost)"
}

affinity() {
    echo "# affinity"
    local said
    said=$(taskset -c 2 true 2>&1) || said=$(error "$said")
    fact "sched_setaffinity from outside to a CPU of the partition" EINVAL "$said"
    fact "to CPUs in and outside of it: those outside" 1 \
        "$(taskset -c 1-2 awk '$1 == "Cpus_allowed_list:" { print $2 }' /proc/self/status)"
    fact "from outside to CPUs of nobody's" 1 \
        "$(taskset -c 1 awk '$1 == "Cpus_allowed_list:" { print $2 }' /proc/self/status)"
}

offline_and_back() {
    echo "# CPUs that go offline"
    fact "one of the owner's two goes offline" ok "$(offline 3)"
    fact "in force" "root: 2, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "and back" ok "$(back 3)"
    fact "in force" "root: $mine, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "a shared CPU goes offline" ok "$(offline 6)"
    fact "in force" "root: $mine, shared $(without "$rest" 6)" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "and back" ok "$(back 6)"
    fact "in force" "root: $mine, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "the owner's first goes offline" ok "$(offline 2)"
    if [[ $new == no ]]; then
        fact "its last one is kept online by the kernel" EBUSY "$(offline 3)"
        fact "in force" "root: 3, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
        fact "the first is back" ok "$(back 2)"
        fact "in force" "root: $mine, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
        fact "its process may run on" "$mine" "$(allowed_in "$owner")"
        return
    fi
    fact "and its last" ok "$(offline 3)"
    fact "in force" "root invalid (No cpu available due to hotplug): $rest, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "its process sleeps and is not asked: it may run on" 3 "$(allowed_in "$owner")"
    fact "one is back" ok "$(back 3)"
    fact "in force" "root invalid (No cpu available due to hotplug): $(together "$rest" 3), shared $(together "$rest" 3)" \
        "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "the other is back" ok "$(back 2)"
    fact "it does not heal" "root invalid (No cpu available due to hotplug): $online, shared $online" "$(force "$owner"), shared $(everyone "${members[@]}")"
    fact "its process may run on" "$online" "$(allowed_in "$owner")"
    fact "CPUs that nobody has" "" "$(lost)"
    fact "member, root" "ok ok" "$(become member "$owner") $(become root "$owner")"
    fact "in force then" "root: $mine, shared $rest" "$(force "$owner"), shared $(everyone "${members[@]}")"
}

# Runs a command in a shell that has no capabilities but the given ones (as setpriv's bounding set has them).
with_capabilities() {
    setpriv --bounding-set "$1" -- sh -c "$2" 2>&1
}

capabilities() {
    echo "# capabilities"
    disown "$owner"
    add_exclusive "$owner" "$mine"
    fact "root without CAP_SYS_ADMIN: no error" "" \
        "$(with_capabilities -sys_admin "echo root >$cgroups/$owner/cpuset.cpus.partition")"
    fact "what stands there then" "root invalid (Enable partition not permitted): $online" "$(force "$owner")"
    fact "member, by the same" "" "$(with_capabilities -sys_admin "echo member >$cgroups/$owner/cpuset.cpus.partition")"
    fact "root with CAP_SYS_ADMIN alone" "" \
        "$(with_capabilities -all,+sys_admin "echo root >$cgroups/$owner/cpuset.cpus.partition")"
    fact "in force then" "root: $mine" "$(force "$owner")"
    fact "exclusive without CAP_SYS_ADMIN on a live partition: no error" "" \
        "$(with_capabilities -sys_admin "echo 3 >$cgroups/$owner/cpuset.cpus.exclusive")"
    fact "in force then: changing a live one needs no capability" "root: 3" "$(force "$owner")"
    exclusive "$mine" "$owner" >/dev/null
    fact "put right" "root: $mine" "$(force "$owner")"
    disown "$owner"
    fact "given back" "$online" "$(everyone "${members[@]}")"
}

invalid() {
    gone "$owner"
    populated "$owner"
    echo "# what the kernel takes without an error and does not do"
    fact "leaf without its ancestors: exclusive, root" "ok ok" "$(exclusive "$mine" "$owner") $(become root "$owner")"
    fact "what stands there" "root invalid (Invalid cpu list in cpuset.cpus.exclusive): $online" "$(force "$owner")"
    fact "CPUs of everyone" "$online" "$(everyone "${members[@]}")"
    fact "exclusive on the ancestors afterwards" "ok ok" "$(exclusive "$mine" kubepods) $(exclusive "$mine" "${owner%/*}")"
    fact "exclusive on the leaf again" ok "$(exclusive "$mine" "$owner")"
    fact "an invalid partition does not heal by that" "root invalid (Parent is not a partition root): $online" "$(force "$owner")"
    fact "root again" ok "$(become root "$owner")"
    fact "heals it" "root: $mine" "$(force "$owner")"
    disown "$owner"
    fact "kubepods alone, its pod without" "ok ok ok" "$(exclusive "$mine" kubepods) $(exclusive "$mine" "$owner") $(become root "$owner")"
    fact "what stands there" "root invalid (Invalid cpu list in cpuset.cpus.exclusive): $online" "$(force "$owner")"
    disown "$owner"
    fact "root with no exclusive anywhere" ok "$(become root "$owner")"
    fact "what stands there" "root invalid (cpuset.cpus and cpuset.cpus.exclusive are empty): $online" "$(force "$owner")"
    become member "$owner" >/dev/null
    add_exclusive "$owner" "$online"
    fact "all CPUs, the last shared one too: root" ok "$(become root "$owner")"
    fact "what stands there" "root invalid (Invalid cpu list in cpuset.cpus.exclusive): $online" "$(force "$owner")"
    fact "CPUs of everyone" "$online" "$(everyone "${members[@]}")"
    disown "$owner"
    fact "a live one that grows to all CPUs: made" "" "$(own "$owner" "$mine")"
    add_exclusive "$owner" "$online"
    fact "what stands there when it has grown" "root invalid (Parent is not a partition root): $online, shared $online" "$(force "$owner"), shared $(effective "")"
    disown "$owner"
    fact "CPUs of everyone" "$online" "$(everyone "${members[@]}")"
    fact "CPUs that nobody has" "" "$(lost)"
}

# A partition made beside a sibling in the same pod whose cpuset.cpus intersects it: before 7.2, none comes of it.
beside() {
    local wanted="root: $mine"
    [[ $new == yes ]] || wanted="root invalid (Cpu list in cpuset.cpus not exclusive): $online"
    cpus "$1" "$sandbox" >/dev/null
    fact "exclusive and root beside a sibling with cpuset.cpus=$1" "ok ok" "$(exclusive "$mine" "$owner") $(become root "$owner")"
    fact "what stands there" "$wanted" "$(force "$owner")"
    become member "$owner" >/dev/null
    exclusive "" "$owner" >/dev/null
}

errors() {
    gone "$owner"
    populated "$owner"
    echo "# errors there are"
    local beyond=$(($(getconf _NPROCESSORS_CONF) + 91))
    fact "cpuset.cpus=$theirs on a populated cgroup" ok "$(cpus "$theirs" "$third")"
    if [[ $new == no ]]; then
        fact "clearing it" "ENOSPC, in force $theirs" "$(cpus "" "$third"), in force $(effective "$third")"
    else
        fact "clearing it" "ok, in force $online" "$(cpus "" "$third"), in force $(effective "$third")"
    fi
    fact "all CPUs instead" ok "$(cpus "$online" "$third")"
    fact "a CPU that does not exist" ERANGE "$(exclusive $beyond kubepods)"
    fact "the same in cpuset.cpus" ERANGE "$(cpus $beyond "$third")"
    fact "junk" EINVAL "$(exclusive abc kubepods)"
    fact "junk as a partition" EINVAL "$(become roots "$owner")"
    fact "exclusive that a sibling has" "ok EINVAL EINVAL" \
        "$(exclusive "$mine" "${owner%/*}") $(exclusive "$mine" "${second%/*}") $(exclusive 3-5 "${second%/*}")"
    fact "a write of zero bytes" "$mine" \
        "$(perl -e 'open(my $f, "+<", $ARGV[0]); syswrite($f, "")' "$cgroups/${owner%/*}/cpuset.cpus.exclusive"; cat "$cgroups/${owner%/*}/cpuset.cpus.exclusive")"
    fact "a newline clears exclusive" "ok: " "$(exclusive "" "${owner%/*}"): $(<"$cgroups/${owner%/*}/cpuset.cpus.exclusive")"
    exclusive "$mine" kubepods >/dev/null
    exclusive "$mine" "${owner%/*}" >/dev/null
    fact "a sibling in the same pod with cpuset.cpus=$mine" ok "$(cpus "$mine" "$sandbox")"
    fact "exclusive on the leaf beside it" EINVAL "$(exclusive "$mine" "$owner")"
    beside 3-4
    beside "$online"
    disown "$owner"
    gone "$sandbox"
    populated "$sandbox"
    fact "CPUs of everyone" "$online" "$(everyone "${members[@]}")"
}

ends() {
    echo "# the end of a partition with its cgroup"
    fact "made" "" "$(own "$owner" "$mine")"
    gone "$owner"
    fact "CPUs of everyone once the cgroup is gone" "$online" "$(everyone "${members[@]}")"
    fact "its ancestors' exclusive stands" "$mine $mine" \
        "$(<"$cgroups/kubepods/cpuset.cpus.exclusive") $(<"$cgroups/${owner%/*}/cpuset.cpus.exclusive")"
    populated "$owner"
    fact "a new one in its place begins open" "member: $online" "$(force "$owner")"
    fact "its exclusive and root are enough" "ok ok" "$(exclusive "$mine" "$owner") $(become root "$owner")"
    fact "in force" "root: $mine" "$(force "$owner")"
    gone "$owner"
    gone "$sandbox"
    rmdir "$cgroups/${owner%/*}"
    fact "kubepods' exclusive after the pod" "$mine" "$(<"$cgroups/kubepods/cpuset.cpus.exclusive")"
    fact "another pod may own them" "" "$(own "$second" "$mine")"
    disown "$second"
    fact "kubepods' exclusive at the end" "" "$(<"$cgroups/kubepods/cpuset.cpus.exclusive")"
    fact "CPUs of the root at the end" "$online" "$(effective "")"
    fact "CPUs that nobody has" "" "$(lost)"
}

bare() {
    echo "# bare cpuset.cpus: all there is before Linux 6.7"
    fact "cpuset.cpus.exclusive" "not here" "$([[ -e $cgroups/$owner/cpuset.cpus.exclusive ]] && echo here || echo "not here")"
    fact "cpuset.cpus=$mine on the leaf" ok "$(cpus "$mine" "$owner")"
    fact "in force at the leaf" "member: $mine" "$(force "$owner")"
    fact "its process may run on" "$mine" "$(allowed_in "$owner")"
    fact "CPUs of everyone else" "$online" "$(everyone "${members[@]}")"
    fact "cpuset.cpus=$theirs on the leaf" ok "$(cpus "$theirs" "$owner")"
    fact "takes force" "member: $theirs" "$(force "$owner")"
    cpus "$mine" "$owner" >/dev/null
    fact "the same CPUs for another" ok "$(cpus "$mine" "$second")"
    fact "are in force there, too" "member: $mine" "$(force "$second")"
    fact "cpuset.cpus=$theirs on the pod" ok "$(cpus "$theirs" "${owner%/*}")"
    fact "the leaf, outside its pod's, falls back to the pod's" "member: $theirs" "$(force "$owner")"
    fact "all CPUs for the pod" ok "$(cpus "$online" "${owner%/*}")"
    fact "the leaf has its own again" "member: $mine" "$(force "$owner")"
    fact "offline: 3" ok "$(offline 3)"
    fact "one of its two offline" "member: 2" "$(force "$owner")"
    fact "offline: 2" ok "$(offline 2)"
    fact "both offline: its parent's" "member: $rest" "$(force "$owner")"
    fact "back: 2" ok "$(back 2)"
    fact "one back" "member: 2" "$(force "$owner")"
    fact "back: 3" ok "$(back 3)"
    fact "both back" "member: $mine" "$(force "$owner")"
    fact "cpuset.cpus was kept all the time" "$mine" "$(<"$cgroups/$owner/cpuset.cpus")"
    fact "sched_setaffinity from outside to one of them" 2 "$(taskset -c 2 awk '$1 == "Cpus_allowed_list:" { print $2 }' /proc/self/status)"
    fact "root on the leaf" ok "$(become root "$owner")"
    fact "what stands there" "root invalid (Parent is not a partition root): $mine" "$(force "$owner")"
    become member "$owner" >/dev/null
    fact "clearing cpuset.cpus" ENOSPC "$(cpus "" "$owner")"
    fact "all CPUs instead" ok "$(cpus "$online" "$owner")"
    fact "a CPU that does not exist" ERANGE "$(cpus $(($(getconf _NPROCESSORS_CONF) + 91)) "$owner")"
    fact "junk" EINVAL "$(cpus abc "$owner")"
    cpus "$online" "$second" >/dev/null
    fact "CPUs of everyone" "$online" "$(everyone "${members[@]}")"
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
