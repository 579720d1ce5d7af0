# Prints `pinfold top` while a demo has exclusive CPUs, for docs/pictures/draw.
# vm: small asked
source tests/vm/check.sh

# Slices of half a minute, of which the second has exclusive CPUs. The trap ends the demo.
"$PINFOLD" demo --seconds 1800 >/dev/null 2>&1 &
demo=$!
trap 'kill -INT "$demo" 2>/dev/null || true; wait || true' EXIT
for ((attempt = 0; attempt < 240; attempt++)); do
    "$PINFOLD" top --once --exclusive --width 112 2>/dev/null | grep -q '/worker-0 ' && break
    sleep 1
done
# The rates need some seconds.
sleep 8
echo "picture begins"
"$PINFOLD" top --once --interval 5s --width 112 || fail "top ended with $?"
echo "picture ends"
