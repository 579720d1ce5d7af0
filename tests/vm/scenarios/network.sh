# A guest can make bridges, veth pairs and network namespaces. The kernel loads the modules after a netlink request.
# vm: small
source tests/vm/check.sh

cleanup() {
    ip netns delete pinfold-test || true
    ip link delete pinfold-test || true
}
trap cleanup EXIT
ip link add pinfold-test type bridge
ip netns add pinfold-test
ip link add pinfold-port master pinfold-test up type veth peer name eth0 netns pinfold-test
ip address add 10.250.0.1/24 dev pinfold-test
ip link set pinfold-test up
ip -n pinfold-test address add 10.250.0.2/24 dev eth0
ip -n pinfold-test link set eth0 up
echo hello >/run/pinfold-hello
served() {
    [[ $(ip netns exec pinfold-test curl -s --max-time 5 "http://10.250.0.1:8000/pinfold-hello") == hello ]]
}
busybox httpd -f -p 10.250.0.1:8000 -h /run &
server=$!
trap 'kill $server; cleanup' EXIT
within 60 "a program in the namespace reaches a server outside of the namespace through the bridge" served
