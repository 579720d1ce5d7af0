# What the scenarios share; they source it. A scenario ends with 0 if all holds, and prints what it saw on the way.
# shellcheck shell=bash
set -euo pipefail
: "${PINFOLD:?the path of the pinfold binary}"
# Small programs without libraries, where the guest has them: an emulated CPU starts one in a fourth of the time that its
# larger sister takes.
for program in cat cmp diff find grep head mkdir mktemp rm rmdir sed sleep sort tac tail tee tr uniq wc; do
    [[ ! -x /run/applets/$program ]] || hash -p "/run/applets/$program" "$program"
done

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

# asked PATH: what the agent serves there.
asked() (
    exec 3<>/dev/tcp/127.0.0.1/9470 || exit 1
    printf 'GET %s HTTP/1.0\r\n\r\n' "$1" >&3
    answer=$(cat <&3)
    [[ $answer == HTTP/1.[01]\ 200\ * ]] || exit 1
    printf '%s\n' "${answer#*$'\r\n\r\n'}"
) 2>/dev/null

# status KEY: a value of the agent's status that stands in one line, without its quotation marks.
status() {
    local text value line=$'\n  "'$1'": '
    text=$(asked /status) || fail "the agent doesn't serve its status"
    [[ $text == *"$line"* ]] || fail "the agent's status has no $1: $text"
    value=${text#*"$line"}
    value=${value%%$'\n'*}
    value=${value%,}
    value=${value#\"}
    echo "${value%\"}"
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
