# The machine that QEMU was asked for is the machine that Pinfold sees.
# vm: small large
source tests/vm/check.sh

case ${PINFOLD_VM_MACHINE:?} in
small) cpus=8 cores=4 numa=2 sockets=2 ;;
large) cpus=24 cores=12 numa=4 sockets=2 ;;
*) fail "no machine $PINFOLD_VM_MACHINE" ;;
esac
topology=$("$PINFOLD" topology -o json)
see() {
    jq -c "$1" <<<"$topology"
}
equal "CPUs" "$cpus" "$(see '.cpus | length')"
equal "cores" "$cores" "$(see '[.cpus[] | [.socket, .core]] | unique | length')"
equal "threads per core" "[2]" "$(see '[.cpus | group_by([.socket, .core])[] | length] | unique')"
equal "NUMA nodes" "$numa" "$(see '.numa | length')"
equal "CPUs per NUMA node" "[$((cpus / numa))]" "$(see '[.cpus | group_by(.numa)[] | length] | unique')"
equal "sockets" "$sockets" "$(see '[.cpus[].socket] | unique | length')"
