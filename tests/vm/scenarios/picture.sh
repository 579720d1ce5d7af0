# Prints the screen of `pinfold top` during a shared and a pinned slice of a demo, for docs/pictures/draw: as base64 of tmux's capture, with the
# colours. Needs tmux on the machine. The guest is slow while the machine has other work, and a screen may then never be complete.
# vm: small asked
source tests/vm/check.sh

"$PINFOLD" demo --seconds 720 >/dev/null 2>&1 &
demo=$!
trap 'tmux kill-server 2>/dev/null; kill -INT "$demo" 2>/dev/null || true; wait || true' EXIT

# complete PATTERN: whether the screen has this line, and is no frame of an agent that does not respond. Keeps the screen.
complete() {
    local plain
    # A guest that looks all the time has no time for the demo.
    sleep 2
    captured=$(tmux capture-pane -e -p -t top) || return 1
    plain=$(sed $'s/\e\\[[0-9;]*m//g' <<<"$captured")
    [[ $plain != *"no response"* ]] && grep -E "$1" >/dev/null <<<"$plain"
}
# screen NAME: prints the screen that was complete.
screen() {
    echo "$1 begins"
    base64 <<<"$captured"
    echo "$1 ends"
}

# Without -q, because top must not fail for a closed pipe.
runs() { "$PINFOLD" top --once --interval 1s 2>/dev/null | grep '/worker-1 ' >/dev/null; }
within 200 "the demo runs" runs
TERM=xterm-256color LC_ALL=C.UTF-8 tmux -u new-session -d -s top -x 104 -y 14 "$PINFOLD top --interval 5s"
# The columns after the role: the CPUs, their use, threads, runnable threads, and for an owner the interference.
figures=' +[0-9.]+ +[0-9]+/[0-9]+ +[0-9.]+ '
within 300 "the job runs on shared CPUs" complete "worker-1 +worker +shared$figures"
screen before
within 300 "the job runs on exclusive CPUs" complete "worker-1 +worker +[0-9,-]+$figures.*%"
screen after
