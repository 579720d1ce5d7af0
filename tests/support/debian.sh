# Functions that download packages of any Debian release. A separate apt with its own sources and lists leaves the system's
# sources and lists unchanged.
#
# The script that sources this file defines `die`, $cache and $lists. $lists is a folder for package lists. The lists are
# large and soon stale, so the caller deletes the folder at its end.
# shellcheck shell=bash
: "${lists:?a folder for package lists}"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

system_updated=no
update_system() {
    [[ $system_updated == yes ]] && return
    apt-get -q update -o APT::Update::Error-Mode=any >&2 ||
        die "can't reach this machine's package mirror (see above): connect this machine to the network, or copy a filled $cache here"
    system_updated=yes
}

# Prints the address of a suite's mirror from this machine's apt sources, or nothing if the sources name no mirror.
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

# Runs an apt tool with the sources and lists of a suite in $lists.
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
    # apt knows the origin of a source only after the download of its lists.
    [[ -n ${PINFOLD_VM_MIRROR:-} ]] || [[ -n $(mirror_of "$main") ]] || update_system
    for suite in "$@"; do
        mirror=$(mirror_of "$suite")
        if [[ -z $mirror ]]; then
            [[ $suite == "$main" ]] &&
                die "this machine's apt sources name no Debian mirror: set PINFOLD_VM_MIRROR to the address of a mirror"
            echo "no mirror for $suite: continuing without the updates of $suite" >&2
            continue
        fi
        echo "deb [arch=amd64 signed-by=$keyring] $mirror $suite main"
    done
}

# Downloads the package lists of a release and of the suites with its updates into $lists/RELEASE.
own_lists() {
    local main=$1
    [[ -e $lists/$main/sources.list ]] && return
    mkdir -p "$lists/$main"/{state/lists/partial,cache/archives/partial}
    sources "$@" >"$lists/$main/sources"
    mv "$lists/$main/sources" "$lists/$main/sources.list"
    own_apt apt-get "$main" update >&2 ||
        die "can't download the package lists of $main (see above): connect this machine to the network, or copy a filled $cache here"
}
