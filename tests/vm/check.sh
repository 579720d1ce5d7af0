# Functions of all scenarios. A scenario sources this file, prints its observations, and exits with 0 if all checks pass.
# shellcheck shell=bash
set -euo pipefail
# After SIGTERM, the trap for EXIT sees a code other than 0.
trap 'exit 143' TERM
: "${PINFOLD:?the path of the pinfold binary}"
# Use the static programs of busybox if the guest has them: an emulated CPU starts a static program four times as fast.
for program in cat cmp diff find grep head mkdir mktemp rm rmdir sed sleep sort tac tail tee tr uniq wc; do
    [[ ! -x /run/applets/$program ]] || hash -p "/run/applets/$program" "$program"
done

fail() {
    echo "FAILED: $*"
    exit 1
}

# equal SUBJECT EXPECTED ACTUAL: fails the scenario if the values differ.
equal() {
    [[ $2 == "$3" ]] || fail "$1: expected ${2:-none}, found ${3:-none}"
    echo "$1: ${3:-none}"
}

# within SECONDS SUBJECT COMMAND…: waits until the command succeeds. Fails the scenario after SECONDS.
within() {
    local seconds=$1 what=$2 start=$EPOCHREALTIME
    shift 2
    local end=$((SECONDS + seconds))
    until "$@"; do
        ((SECONDS < end)) || fail "$what: not within $seconds s"
        sleep 0.05
    done
    echo "$what: after $(((${EPOCHREALTIME/./} - ${start/./}) / 1000)) ms"
}

# http_get PATH: prints the agent's HTTP response body. Fails for a status other than 200.
http_get() (
    exec 3<>/dev/tcp/127.0.0.1/9470 || exit 1
    printf 'GET %s HTTP/1.0\r\n\r\n' "$1" >&3
    answer=$(cat <&3)
    [[ $answer == HTTP/1.[01]\ 200\ * ]] || exit 1
    printf '%s\n' "${answer#*$'\r\n\r\n'}"
) 2>/dev/null

# status KEY: prints a value of the agent's /status, without quotation marks. The value must be on the key's line.
status() {
    local text value line=$'\n  "'$1'": '
    text=$(http_get /status) || fail "can't read the agent's /status"
    [[ $text == *"$line"* ]] || fail "the agent's /status has no key $1: $text"
    value=${text#*"$line"}
    value=${value%%$'\n'*}
    value=${value%,}
    value=${value#\"}
    echo "${value%\"}"
}

# Prints the number of the agent's turns of the reconciler.
turns() {
    http_get /metrics | awk '$1 ~ /^pinfold_reconcile_total/ { sum += $2 } END { print sum + 0 }'
}
has_made() { (($(turns) >= $1)); }

# goes_on SECONDS: waits SECONDS, and until the agent has made two further turns, which a slow guest may delay.
goes_on() {
    local end=$(($(turns) + 2))
    sleep "$1"
    within 120 "two further turns of the agent" has_made "$end"
}

# Prints the CPUs of a list, for example 0-2,5, one per line.
expand() {
    local part cpu
    for part in ${1//,/ }; do
        for ((cpu = ${part%-*}; cpu <= ${part#*-}; cpu++)); do
            echo "$cpu"
        done
    done
}

# Prints the CPUs that are in both lists, one per line.
common() {
    comm -12 <(expand "$1" | sort) <(expand "$2" | sort)
}

# Ends the scenario as skipped.
not_here() {
    echo "not here: $*"
    exit 77
}
