# Packages of other Debian releases than this machine's, by an apt with sources and lists of its own: the system's stay what
# they are. Sourced; needs `die` and a folder named by $lists, which is large and soon stale and so is not to be kept.
# shellcheck shell=bash
: "${lists:?a folder for package lists}"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

system_updated=no
update_system() {
    [[ $system_updated == yes ]] && return
    apt-get -q update -o APT::Update::Error-Mode=any >&2 ||
        die "can't reach this machine's package mirror (see above): connect it, or bring a filled $cache"
    system_updated=yes
}

# The address of a suite's mirror, as this machine's own apt sources have it; empty where they name none.
mirror_of() {
    local suite=$1 override=${PINFOLD_VM_MIRROR:-} security=0
    if [[ $suite == *-security ]]; then
        override=${PINFOLD_VM_SECURITY_MIRROR:-} security=1
    fi
    if [[ -n $override ]]; then
        echo "$override"
        return
    fi
    apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)|$(RELEASE)' 'Created-By: Packages' |
        awk -F'|' -v security=$security '
            $1 == "Debian" && ($3 ~ /-security$/) == security && !found { print $2; found = 1 }'
}

# An apt of our own, with its own sources and lists, so that the system's stay what they are.
own_apt() {
    local tool=$1 suite=$2
    shift 2
    "$tool" -q -o Dir::Etc::sourcelist="$lists/$suite/sources.list" -o Dir::Etc::sourceparts=- \
        -o Dir::State="$lists/$suite/state" -o Dir::Cache="$lists/$suite/cache" -o APT::Sandbox::User=root \
        -o APT::Architecture=amd64 -o APT::Update::Error-Mode=any -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@"
}

# Prints the lines of a sources.list for a release and its security updates.
sources() {
    local main=$1 suite mirror
    # The origins of the system's sources are known only once their lists are there.
    [[ -n ${PINFOLD_VM_MIRROR:-} ]] || [[ -n $(mirror_of "$main") ]] || update_system
    for suite in "$@"; do
        mirror=$(mirror_of "$suite")
        if [[ -z $mirror ]]; then
            [[ $suite == "$main" ]] &&
                die "this machine's apt sources name no Debian mirror: name one with PINFOLD_VM_MIRROR"
            echo "no mirror for $suite: its updates are left out" >&2
            continue
        fi
        echo "deb [arch=amd64 signed-by=$keyring] $mirror $suite main"
    done
}

# Fetches the lists of a release, and of the suites with its updates; $lists/RELEASE stands for all of them.
own_lists() {
    local main=$1
    [[ -e $lists/$main/sources.list ]] && return
    mkdir -p "$lists/$main"/{state/lists/partial,cache/archives/partial}
    sources "$@" >"$lists/$main/sources"
    mv "$lists/$main/sources" "$lists/$main/sources.list"
    own_apt apt-get "$main" update >&2 ||
        die "can't fetch the package lists of $main (see above): connect this machine, or bring a filled $cache"
}
