# How a kernel loses CPUs until the reboot, how a probe detects such a kernel, and which rules prevent the loss. No other
# scenario may run in the same boot, because the CPUs stay lost.
# vm: small last
source tests/vm/check.sh
source tests/vm/cpuset.sh
since 6.7 || not_here "Linux $(uname -r) has no remote partitions"
trap 'clear_cgroups kubepods' EXIT

# Whether a sibling's cpuset.cpus invalidates a valid partition. Linux 6.12 does so, and 7.2 does not. The versions between
# them were not tested.
loses=yes
! since 7.2 || loses=no
pod=kubepods/podA
owner=$pod/main
sibling=$pod/sandbox
echo "+cpuset" >"$cgroups/cgroup.subtree_control"
parent kubepods
parent "$pod"

# either A B: prints the expected value: A on a kernel that loses CPUs, else B.
either() { [[ $loses == yes ]] && echo "$1" || echo "$2"; }

# Prints the state of the owner, the sibling, the root cgroup and the lost CPUs in a line.
seen() { echo "$(force "$owner"), sibling $(effective "$sibling"), shared $(effective ""), lost $(lost)"; }

# Makes the owner's and the sibling's cgroups anew.
fresh() {
    local path
    for path in "$owner" "$sibling"; do
        [[ ! -d $cgroups/$path ]] || gone "$path"
        populated "$path"
    done
}

# notifies CGROUP COMMAND…: runs the command. Prints whether a process that polls cpuset.cpus.partition gets an event.
notifies() {
    local path=$1 said poller
    shift
    said=$(mktemp)
    perl -e '
        open(my $file, "<", $ARGV[0]) or die;
        sysread($file, my $text, 4096);
        syswrite(STDOUT, "waiting\n");
        vec(my $events, fileno($file), 1) = 1;
        syswrite(STDOUT, select(undef, undef, $events, 20) > 0 ? "event\n" : "no event\n");
    ' "$cgroups/$path/cpuset.cpus.partition" >"$said" &
    poller=$!
    until grep -q waiting "$said"; do sleep 0.02; done
    "$@" >/dev/null
    wait "$poller"
    tail -n 1 "$said"
    rm "$said"
}

probe() {
    echo "# the probe: a sibling's cpuset.cpus intersects a valid partition, and member is written before a cgroup is removed"
    fresh
    fact "a partition" "" "$(own "$owner" 2)"
    fact "a sibling's cpuset.cpus that intersects the partition" ok "$(cpus 2-3 "$sibling")"
    fact "partition state, which is the result of the probe" "$(either "root invalid" root)" "$(partition "$owner")"
    become member "$owner" >/dev/null
    fact "CPUs of the root cgroup after member" "$online" "$(effective "")"
    disown "$owner"
    fresh
    fact "lost CPUs" "" "$(lost)"
}

rule_3() {
    local shared
    shared=$(without "$online" 2-3)
    echo "# rule 3: after root invalid, first write member, then repair the sibling, then make the partition again"
    fresh
    fact "a partition of 2-3" "" "$(own "$owner" 2-3)"
    fact "event of cpuset.cpus.partition after a sibling's cpuset.cpus intersects the partition" "$(either event "no event")" \
        "$(notifies "$owner" cpus 3-4 "$sibling")"
    fact "state" "$(either "root invalid: 2-3, sibling 4, shared $shared, lost 2-3" "root: 2-3, sibling 4, shared $shared, lost ")" "$(seen)"
    fact "allowed CPUs of the owner's process" 2-3 "$(allowed_in "$owner")"
    fact "cpuset.cpus of the sibling becomes disjoint" ok "$(cpus 4-5 "$sibling")"
    fact "state" "$(either "root invalid: 2-3, sibling 4-5, shared $shared, lost 2-3" "root: 2-3, sibling 4-5, shared $shared, lost ")" "$(seen)"
    fact "root without a previous member" ok "$(become root "$owner")"
    fact "state after root" \
        "$(either "root invalid (Invalid cpu list in cpuset.cpus.exclusive): $shared, sibling 4-5, shared $shared, lost 2-3" \
            "root: 2-3, sibling 4-5, shared $shared, lost ")" "$(seen)"
    fact "member" ok "$(become member "$owner")"
    fact "lost CPUs after member" "" "$(lost)"
    fact "root after member" ok "$(become root "$owner")"
    fact "state" "root: 2-3, sibling 4-5, shared $shared, lost " "$(seen)"
    fact "event of cpuset.cpus.partition after member" event "$(notifies "$owner" become member "$owner")"
    disown "$owner"
    fact "lost CPUs" "" "$(lost)"
}

# Not every 6.12 behaves like this: 6.12.107 changed such a partition to `member` without an event, and lost its CPUs at the
# write of `member`.
ancestors() {
    local shared
    shared=$(without "$online" 4-5)
    echo "# an ancestor's exclusive loses CPUs of a valid partition"
    fresh
    fact "a partition of 4-5" "" "$(own "$owner" 4-5)"
    cpus 6 "$owner" >/dev/null
    fact "exclusive of kubepods shrinks to 4" ok "$(exclusive 4 kubepods)"
    fact "the partition shrinks and stays valid" "root: 4, shared $(without "$online" 4)" "$(force "$owner"), shared $(effective "")"
    fact "exclusive of kubepods grows to 4-5" ok "$(exclusive 4-5 kubepods)"
    fact "the partition grows back" "root: 4-5, shared $shared" "$(force "$owner"), shared $(effective "")"
    fact "event of cpuset.cpus.partition after the pod's exclusive is cleared" event "$(notifies "${owner}" exclusive "" "$pod")"
    fact "the leaf has the CPUs of its old cpuset.cpus" "root invalid (Parent is not a partition root): 6, shared $online" \
        "$(force "$owner"), shared $(effective "")"
    fact "exclusive of the pod grows to 4-5" ok "$(exclusive 4-5 "$pod")"
    fact "the partition stays invalid" "root invalid (Parent is not a partition root): 6, shared $online" "$(force "$owner"), shared $(effective "")"
    fact "member" ok "$(become member "$owner")"
    fact "lost CPUs after member" "" "$(lost)"
    fact "root after member" ok "$(become root "$owner")"
    fact "state" "root: 4-5, shared $shared" "$(force "$owner"), shared $(effective "")"
    fact "exclusive of kubepods is cleared" ok "$(exclusive "" kubepods)"
    fact "state" "root invalid (Parent is not a partition root): 6, shared $online" "$(force "$owner"), shared $(effective "")"
    gone "$owner"
    fact "lost CPUs after the removal of the partition's cgroup without member" "" "$(lost)"
    exclusive "" "$pod" >/dev/null
}

sibling_and_removal() {
    local wanted shared
    wanted=$(either 6 "")
    shared=$(without "$online" 6)
    echo "# a sibling's cpuset.cpus intersects a valid partition, and then the partition's cgroup is removed"
    fresh
    fact "a partition of 6" "" "$(own "$owner" 6)"
    fact "a sibling's cpuset.cpus that intersects the partition" ok "$(cpus 5-6 "$sibling")"
    fact "state" "$(either "root invalid: 6, sibling 5, shared $shared, lost 6" "root: 6, sibling 5, shared $shared, lost ")" "$(seen)"
    gone "$owner"
    fact "rule 5: lost CPUs are the online CPUs that are in neither the root cgroup nor a valid partition" "$wanted" "$(lost)"
    populated "$owner"
    exclusive "" "$pod" >/dev/null
    exclusive "" kubepods >/dev/null
    fact "lost CPUs after every exclusive is cleared" "$wanted" "$(lost)"
    # The lost CPU 6 is alone in a scheduling domain. The hotplug of CPU 7 first takes CPU 6 out of this domain.
    fact "CPU 7 offline and back, then CPU 6 offline and back" "ok ok ok ok" "$(offline 7) $(back 7) $(offline 6) $(back 6)"
    fact "lost CPUs after that" "$wanted" "$(lost)"
    cpus 5 "$sibling" >/dev/null
    fact "a new partition of 6" "$(either "$owner: root invalid (Invalid cpu list in cpuset.cpus.exclusive): $shared" "")" "$(own "$owner" 6)"
    disown "$owner"
    clear_cgroups kubepods
    processes=()
    fact "lost CPUs after every cgroup is removed" "$wanted" "$(lost)"
}

probe
rule_3
ancestors
sibling_and_removal
settle
