#!/usr/bin/env bash
# Several hosts on this machine: network namespaces that a bridge joins. As root; everything it makes bears NAME.
#
#   tests/hosts.sh up NAME COUNT            hosts NAME-1 to NAME-COUNT, 10.77.0.1 to 10.77.0.COUNT, behind one bridge
#   tests/hosts.sh black-hole NAME HOST     its cable is out at the far end: it sees nothing of that and hears nothing
#   tests/hosts.sh cut NAME HOST            its own interface is down: whatever it asks the network fails at once
#   tests/hosts.sh throttle NAME HOST RATE  what it sends leaves at this rate (1mbit)
#   tests/hosts.sh delay NAME HOST TIME     what it sends leaves later; status 3 where the kernel has no netem
#   tests/hosts.sh heal NAME HOST           as it was at first
#   tests/hosts.sh sweep PREFIX             takes down what killed tests left: names are PREFIX followed by a process id
#   tests/hosts.sh down NAME
#
# Run a program on a host with: ip netns exec NAME-HOST PROGRAM. The hosts share the file system, and with it Unix sockets.
set -euo pipefail

fail() {
    printf 'hosts.sh: %s\n' "$1" >&2
    exit 1
}

command -v ip >/dev/null || fail "there is no \`ip\`; install iproute2 (scripts/setup.sh does)"
[ "$(id -u)" -eq 0 ] || fail "making network namespaces takes root"

inside() {
    local place=$1
    shift
    ip netns exec "$place" "$@"
}

# The bridge lives in a namespace of its own, so that nothing of it is seen outside.
up() {
    local name=$1 count=$2 host
    ip netns add "$name-net"
    inside "$name-net" ip link add bridge type bridge
    inside "$name-net" ip link set bridge up
    for host in $(seq "$count"); do
        ip netns add "$name-$host"
        ip link add "port$host" netns "$name-net" type veth peer name eth0 netns "$name-$host"
        inside "$name-net" ip link set "port$host" master bridge up
        inside "$name-$host" ip link set lo up
        inside "$name-$host" ip address add "10.77.0.$host/24" dev eth0
        inside "$name-$host" ip link set eth0 up
    done
}

down() {
    local place
    while read -r place _; do
        case $place in
            "$1"-*) ip netns delete "$place" ;;
        esac
    done < <(ip netns list)
}

sweep() {
    local place pid
    while read -r place _; do
        [[ $place =~ ^$1([0-9]+)- ]] || continue
        pid=${BASH_REMATCH[1]}
        [ -e "/proc/$pid" ] || ip netns delete "$place"
    done < <(ip netns list)
}

shape() {
    inside "$1-$2" tc qdisc replace dev eth0 root "${@:3}"
}

heal() {
    inside "$1-$2" tc qdisc delete dev eth0 root 2>/dev/null || true
    inside "$1-net" ip link set "port$2" up
    inside "$1-$2" ip link set eth0 up
}

case ${1:-} in
    up) up "$2" "$3" ;;
    black-hole) inside "$2-net" ip link set "port$3" nomaster ;;
    cut) inside "$2-$3" ip link set eth0 down ;;
    throttle) shape "$2" "$3" tbf rate "$4" burst 64kb latency 500ms ;;
    delay) shape "$2" "$3" netem delay "$4" 2>/dev/null || exit 3 ;;
    heal)
        heal "$2" "$3"
        inside "$2-net" ip link set "port$3" master bridge
        ;;
    sweep) sweep "$2" ;;
    down) down "$2" ;;
    *) fail "up, down, sweep, cut, black-hole, throttle, delay or heal; see the head of this file" ;;
esac
