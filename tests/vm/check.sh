# What the scenarios share; they source it. A scenario ends with 0 if all holds, and prints what it saw on the way.
# shellcheck shell=bash
set -euo pipefail
: "${PINFOLD:?the path of the pinfold binary}"

fail() {
    echo "FAILED: $*"
    exit 1
}

# equal WHAT WANTED SEEN
equal() {
    [[ $2 == "$3" ]] || fail "$1: should be ${2:-none}, is ${3:-none}"
    echo "$1: ${3:-none}"
}

# Waits for a condition: within SECONDS WHAT COMMAND…
within() {
    local seconds=$1 what=$2 start=$EPOCHREALTIME
    shift 2
    local end=$((SECONDS + seconds))
    until "$@"; do
        ((SECONDS < end)) || fail "not after $seconds s: $what"
        sleep 0.05
    done
    echo "$what: after $(((${EPOCHREALTIME/./} - ${start/./}) / 1000)) ms"
}

# The CPUs of a list like 0-2,5, one per line.
expand() {
    local part cpu
    for part in ${1//,/ }; do
        for ((cpu = ${part%-*}; cpu <= ${part#*-}; cpu++)); do
            echo "$cpu"
        done
    done
}

# The CPUs that two lists have in common, one per line.
common() {
    comm -12 <(expand "$1" | sort) <(expand "$2" | sort)
}

# Ends a scenario that this kernel has nothing to try for.
not_here() {
    echo "not here: $*"
    exit 77
}
