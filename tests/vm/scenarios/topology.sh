# Pinfold reads the topology that QEMU emulates.
# vm: small large
source tests/vm/check.sh

case ${PINFOLD_VM_MACHINE:?} in
small) cpus=8 cores=4 numa=2 sockets=2 ;;
large) cpus=24 cores=12 numa=4 sockets=2 ;;
*) fail "no machine $PINFOLD_VM_MACHINE" ;;
esac
topology=$("$PINFOLD" topology -o json)
# Prints the result of a jq filter on the topology.
query() {
    jq -c "$1" <<<"$topology"
}
equal "CPUs" "$cpus" "$(query '.cpus | length')"
equal "cores" "$cores" "$(query '[.cpus[] | [.socket, .core]] | unique | length')"
equal "threads per core" "[2]" "$(query '[.cpus | group_by([.socket, .core])[] | length] | unique')"
equal "NUMA nodes" "$numa" "$(query '.numa | length')"
equal "CPUs per NUMA node" "[$((cpus / numa))]" "$(query '[.cpus | group_by(.numa)[] | length] | unique')"
equal "sockets" "$sockets" "$(query '[.cpus[].socket] | unique | length')"
