# The ways in which a kernel may lose CPUs for good, how to ask a kernel whether it is one of those, and the rules that keep
# clear of them. What is lost stays lost until the reboot: nothing else may run in this boot.
# vm: small last
source tests/vm/check.sh
source tests/vm/cpuset.sh
since 6.7 || not_here "Linux $(uname -r) has no remote partitions to lose CPUs by"
trap 'clear_cgroups kubepods' EXIT

# Whether a sibling's cpuset.cpus invalidates a live partition; where between 6.12 and 7.2 that ended has not been tried.
loses=yes
! since 7.2 || loses=no
pod=kubepods/podA
owner=$pod/main
sibling=$pod/sandbox
echo "+cpuset" >"$cgroups/cgroup.subtree_control"
parent kubepods
parent "$pod"

# What is expected: the first where the kernel loses CPUs, else the second.
either() { [[ $loses == yes ]] && echo "$1" || echo "$2"; }

# Everything there is to see, in a line.
seen() { echo "$(force "$owner"), sibling $(effective "$sibling"), shared $(effective ""), lost $(lost)"; }

fresh() {
    local path
    for path in "$owner" "$sibling"; do
        [[ ! -d $cgroups/$path ]] || gone "$path"
        populated "$path"
    done
}

# awaited CGROUP COMMAND…: whether the command makes cpuset.cpus.partition tell those who poll it.
awaited() {
    local path=$1 said poller
    shift
    said=$(mktemp)
    perl -e '
        open(my $file, "<", $ARGV[0]) or die;
        sysread($file, my $text, 4096);
        syswrite(STDOUT, "waiting\n");
        vec(my $events, fileno($file), 1) = 1;
        syswrite(STDOUT, select(undef, undef, $events, 20) > 0 ? "told\n" : "not told\n");
    ' "$cgroups/$path/cpuset.cpus.partition" >"$said" &
    poller=$!
    until grep -q waiting "$said"; do sleep 0.02; done
    "$@" >/dev/null
    wait "$poller"
    tail -n 1 "$said"
    rm "$said"
}

probe() {
    echo "# the probe: a sibling's cpuset.cpus that intersects a live partition, and nothing removed before member"
    fresh
    fact "a partition" "" "$(own "$owner" 2)"
    fact "an intersecting cpuset.cpus beside it" ok "$(cpus 2-3 "$sibling")"
    fact "the answer" "$(either "root invalid" root)" "$(partition "$owner")"
    become member "$owner" >/dev/null
    fact "CPUs of the root after member" "$online" "$(effective "")"
    disown "$owner"
    fresh
    fact "CPUs that nobody has" "" "$(lost)"
}

rule_3() {
    local shared
    shared=$(without "$online" 2-3)
    echo "# rule 3: on root invalid write member at once, then mend, then make it again"
    fresh
    fact "a partition of 2-3" "" "$(own "$owner" 2-3)"
    fact "those who poll cpuset.cpus.partition, when a sibling's cpuset.cpus intersects it" "$(either told "not told")" \
        "$(awaited "$owner" cpus 3-4 "$sibling")"
    fact "in force" "$(either "root invalid: 2-3, sibling 4, shared $shared, lost 2-3" "root: 2-3, sibling 4, shared $shared, lost ")" "$(seen)"
    fact "its process may run on" 2-3 "$(allowed_in "$owner")"
    fact "the sibling made disjoint" ok "$(cpus 4-5 "$sibling")"
    fact "in force" "$(either "root invalid: 2-3, sibling 4-5, shared $shared, lost 2-3" "root: 2-3, sibling 4-5, shared $shared, lost ")" "$(seen)"
    fact "root alone" ok "$(become root "$owner")"
    fact "in force: nobody has them" \
        "$(either "root invalid (Invalid cpu list in cpuset.cpus.exclusive): $shared, sibling 4-5, shared $shared, lost 2-3" \
            "root: 2-3, sibling 4-5, shared $shared, lost ")" "$(seen)"
    fact "member" ok "$(become member "$owner")"
    fact "CPUs that nobody has after it" "" "$(lost)"
    fact "root after it" ok "$(become root "$owner")"
    fact "in force" "root: 2-3, sibling 4-5, shared $shared, lost " "$(seen)"
    fact "those who poll, when someone writes member" told "$(awaited "$owner" become member "$owner")"
    disown "$owner"
    fact "CPUs that nobody has" "" "$(lost)"
}

# Not so in all 6.12: 6.12.107 was seen to make such a partition `member` in silence, and to lose its CPUs at the write of
# `member`.
ancestors() {
    local shared
    shared=$(without "$online" 4-5)
    echo "# an ancestor's exclusive that shrinks below a live partition"
    fresh
    fact "a partition of 4-5" "" "$(own "$owner" 4-5)"
    cpus 6 "$owner" >/dev/null
    fact "exclusive of kubepods shrinks to 4" ok "$(exclusive 4 kubepods)"
    fact "the partition shrinks in silence" "root: 4, shared $(without "$online" 4)" "$(force "$owner"), shared $(effective "")"
    fact "exclusive of kubepods is widened" ok "$(exclusive 4-5 kubepods)"
    fact "the partition grows back" "root: 4-5, shared $shared" "$(force "$owner"), shared $(effective "")"
    fact "those who poll cpuset.cpus.partition, when the pod's exclusive is cleared" told "$(awaited "${owner}" exclusive "" "$pod")"
    fact "the leaf's stale cpuset.cpus takes force" "root invalid (Parent is not a partition root): 6, shared $online" \
        "$(force "$owner"), shared $(effective "")"
    fact "exclusive of the pod is widened" ok "$(exclusive 4-5 "$pod")"
    fact "it does not heal" "root invalid (Parent is not a partition root): 6, shared $online" "$(force "$owner"), shared $(effective "")"
    fact "member" ok "$(become member "$owner")"
    fact "CPUs that nobody has after it" "" "$(lost)"
    fact "root after it" ok "$(become root "$owner")"
    fact "in force" "root: 4-5, shared $shared" "$(force "$owner"), shared $(effective "")"
    fact "exclusive of kubepods is cleared" ok "$(exclusive "" kubepods)"
    fact "in force" "root invalid (Parent is not a partition root): 6, shared $online" "$(force "$owner"), shared $(effective "")"
    gone "$owner"
    fact "CPUs that nobody has once its cgroup is gone without member" "" "$(lost)"
    exclusive "" "$pod" >/dev/null
}

sibling_and_removal() {
    local wanted shared
    wanted=$(either 6 "")
    shared=$(without "$online" 6)
    echo "# a sibling's cpuset.cpus invalidates a live partition, whose cgroup is then removed"
    fresh
    fact "a partition of 6" "" "$(own "$owner" 6)"
    fact "an intersecting cpuset.cpus beside it" ok "$(cpus 5-6 "$sibling")"
    fact "in force" "$(either "root invalid: 6, sibling 5, shared $shared, lost 6" "root: 6, sibling 5, shared $shared, lost ")" "$(seen)"
    gone "$owner"
    fact "rule 5: CPUs of the root and of live partitions, compared with those online; lost" "$wanted" "$(lost)"
    populated "$owner"
    exclusive "" "$pod" >/dev/null
    exclusive "" kubepods >/dev/null
    fact "after every exclusive is cleared" "$wanted" "$(lost)"
    # Another CPU first: that parts the lost one from the scheduling domain that it was left alone in, whose last CPU it is.
    fact "offline and back, after another CPU" "ok ok ok ok" "$(offline 7) $(back 7) $(offline 6) $(back 6)"
    fact "after that" "$wanted" "$(lost)"
    cpus 5 "$sibling" >/dev/null
    fact "claimed again" "$(either "$owner: root invalid (Invalid cpu list in cpuset.cpus.exclusive): $shared" "")" "$(own "$owner" 6)"
    disown "$owner"
    clear_cgroups kubepods
    processes=()
    fact "after every cgroup is removed" "$wanted" "$(lost)"
}

probe
rule_3
ancestors
sibling_and_removal
settle
