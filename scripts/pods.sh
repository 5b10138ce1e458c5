#!/usr/bin/env bash
# Runs the pods of deploy/k8s/overlays/sidecar and node here, without a cluster, with `podman kube play`: an engine (the model engine of
# the tests, which checks every byte that it reads) stores and loads through the daemon's socket; the daemon is killed, drained,
# and given too small a volume. Takes root, podman 5 or newer, and the image (scripts/image.sh).
#
#   scripts/pods.sh                on this machine's podman
#   scripts/pods.sh --root DIR     on the podman of a Debian of its own, which is made by debootstrap unless it is there: for machines
#                                  whose own is older
#
# What podman cannot do is changed before: no native sidecars (the daemon becomes a container beside the engine), no address of the
# pod in a variable, no preStop, no group and size for volumes; sizes are small, and no GPU is asked for.
set -euo pipefail
source "$(dirname "$0")/common.sh"

VERSION=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$REPO/Cargo.toml")
IMAGE=${IMAGE:-localhost/tender:$VERSION}
ENGINE=localhost/tender-pod-engine:test
PROFILE=${PROFILE:-debug}
TARGET=${CARGO_TARGET_DIR:-$REPO/target}
PATIENCE=${PATIENCE:-240}
WORK="$REPO/target/pods"
root=

while [ $# -gt 0 ]; do
    case $1 in
        --root) root=$(mkdir -p "${2:?--root needs a folder}" && cd "$2" && pwd); shift ;;
        *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 64 ;;
    esac
    shift
done
[ "$(id -u)" -eq 0 ] || fail "pods with limits need root" "run this as root"
mkdir -p "$WORK"

# In a sandbox the default limits may be more than this process may set. /run is a memory filesystem of its own in the other Debian.
cat >"$WORK/containers.conf" <<'END'
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
END

make_root() {
    [ -x "$root/usr/bin/podman" ] && return
    section "A Debian with podman (a minute or two)"
    command -v debootstrap >/dev/null || fail "debootstrap is missing" "apt-get install debootstrap"
    debootstrap --variant=minbase --include=podman,crun,netavark,aardvark-dns,conmon,catatonit,ca-certificates,iproute2,iptables \
        trixie "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$WORK/debootstrap.log" ||
        fail "debootstrap ended with an error" "its log: $WORK/debootstrap.log"
}

# Everything that uses pods runs in one mount namespace: this script once more, inside the other Debian or with own mounts.
enter() {
    if [ -z "$root" ]; then
        TENDER_PODS_INSIDE=1 exec "$0"
    fi
    make_root
    mkdir -p "$root/work" "$root/repo"
    # shellcheck disable=SC2016 # expanded inside
    TENDER_PODS_INSIDE=1 ROOT=$root WORK=$WORK REPO=$REPO exec unshare --mount --propagation private bash -ec '
        mount --bind "$ROOT" "$ROOT"
        mount -t proc proc "$ROOT/proc"; mount --rbind /sys "$ROOT/sys"; mount --rbind /dev "$ROOT/dev"
        mount -t tmpfs tmpfs "$ROOT/run"
        # Locks of this podman and arenas of its own.
        mount -t tmpfs tmpfs "$ROOT/dev/shm"
        mount --bind "$WORK" "$ROOT/work"; mount --bind "$REPO" "$ROOT/repo"
        # crun wants one whole hierarchy of control groups.
        umount "$ROOT/sys/fs/cgroup/unified" 2>/dev/null || true
        cd "$ROOT"; mkdir -p .old; pivot_root . .old; umount -l /.old; cd /
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin exec /repo/scripts/pods.sh'
}

# --- Outside: image and pods as files.

prepare() {
    section "Image and pods"
    [ -f "$TARGET/$PROFILE/tender-pod-engine" ] || fail "the engine is not built" \
        "run: cargo build -p tender-tests --bin tender-pod-engine"
    mkdir -p "$WORK/engine"
    cp "$TARGET/$PROFILE/tender-pod-engine" "$WORK/engine/"
    strip --strip-debug "$WORK/engine/tender-pod-engine"
    printf 'FROM %s\nUSER 65532\nENTRYPOINT ["tender-pod-engine"]\nCOPY tender-pod-engine /usr/bin/\n' "$IMAGE" >"$WORK/engine/Dockerfile"
    local conf="$REPO/target/image/containers.conf"
    if [ -z "${CONTAINERS_CONF:-}" ] && [ -f "$conf" ]; then export CONTAINERS_CONF=$conf; fi
    podman image exists "$IMAGE" || fail "there is no image $IMAGE" "run: scripts/image.sh"
    podman build --quiet --pull=never --format docker --tag "$ENGINE" "$WORK/engine" >/dev/null
    rm -f "$WORK/images.tar"
    podman save --quiet --multi-image-archive --output "$WORK/images.tar" "$IMAGE" "$ENGINE"
    unset CONTAINERS_CONF
    command -v kubectl >/dev/null || fail "kubectl is missing" "it puts the overlays together: https://kubernetes.io/docs/tasks/tools"
    kubectl kustomize "$REPO/deploy/k8s/overlays/sidecar" >"$WORK/sidecar.in.yaml"
    kubectl kustomize "$REPO/deploy/k8s/overlays/node" >"$WORK/node.in.yaml"
    kubectl kustomize "$REPO/deploy/k8s/examples/vllm-node" >"$WORK/engines.in.yaml"
    local python=$VENV/bin/python
    [ -x "$python" ] || python=python3
    "$python" "$REPO/scripts/pods.py" "$WORK" "$ENGINE"
    note "$(cd "$WORK" && echo ./*.play.yaml)"
}

# --- Inside: the pods themselves.

export CONTAINERS_CONF PODMAN_IGNORE_CGROUPSV1_WARNING=1
inside() {
    [ -d /repo ] && WORK=/work
    CONTAINERS_CONF=$WORK/containers.conf
    give_back
    trap give_back EXIT
    podman load --quiet --input "$WORK/images.tar" >/dev/null
    note "$(podman --version), $(crun --version | head -n 1)"
    sidecar "$WORK"
    too_small "$WORK"
    node "$WORK"
    section "All of it went as it should"
}

give_back() {
    for pods in "$WORK"/*.play.yaml; do podman kube down --force "$pods" >/dev/null 2>&1 || true; done
    umount /run/tender-pods/volumes/* 2>/dev/null || true
    rm -rf /dev/shm/tender-pods-arena /run/tender-pods
}

# wait_for WHAT COMMAND...: until the command succeeds.
wait_for() {
    local what=$1 begin=$SECONDS
    shift
    until "$@" >/dev/null 2>&1; do
        if [ $((SECONDS - begin)) -ge "$PATIENCE" ]; then
            podman ps --all --format '{{.Names}} {{.Status}}' >&2
            podman logs --tail 5 "${LOOK:-none}" >&2 || true
            fail "waited $PATIENCE s in vain: $what"
        fi
        sleep 0.5
    done
    note "$what (after $((SECONDS - begin)) s)"
}

# says CONTAINER PATTERN COUNT: its log has had so many such lines.
says() { [ "$(podman logs "$1" 2>&1 | grep -cE "$2")" -ge "$3" ]; }
rounds() { podman logs "$1" 2>&1 | grep -cE "$2" || true; }

# play PODS.play.yaml: with volumes of their own, as the kubelet would make them.
play() {
    local path size
    while read -r path size; do
        mkdir -p "$path"
        mountpoint --quiet "$path" || mount -t tmpfs -o "size=$size,mode=2770,gid=65532" tmpfs "$path"
    done <"${1%.play.yaml}.volumes"
    podman kube play --quiet --network none "$1" >/dev/null
}

down() {
    local path size
    # The model engine is the first process of its container and has no ear for SIGTERM.
    podman kill --signal KILL inference-pod-vllm >/dev/null 2>&1 || true
    podman kube down --force "$1" >/dev/null
    while read -r path size; do umount "$path"; done <"${1%.play.yaml}.volumes"
}

ALL='round [0-9]+: 3[0-9]{2} of 384 tokens loaded, 0 failed, .*transport shm'
NONE='round [0-9]+: 0 of 384 tokens loaded'

sidecar() {
    section "(a) A daemon beside the engine"
    play "$1/sidecar.play.yaml"
    local engine=inference-pod-vllm daemon=inference-pod-tenderd
    LOOK=$engine
    wait_for "the daemon is ready by its own word (tender ping --ready)" podman exec "$daemon" tender ping --ready
    wait_for "the engine loads what it stored, through shared memory" says "$engine" "$ALL" 2
    podman exec "$daemon" sh -c 'df -h /run/tender | tail -n 1; id -u; grep -E "CapEff|NoNewPrivs" /proc/1/status' | sed 's/^/      /'
    local before=$(($(rounds "$engine" "$ALL") + 2)) without=$(($(rounds "$engine" "$NONE") + 2))
    podman kill --signal KILL "$daemon" >/dev/null
    note "the daemon is killed"
    wait_for "the engine goes on without it" says "$engine" "$NONE" "$without"
    podman start "$daemon" >/dev/null
    wait_for "the next daemon serves what the killed one had" says "$engine" "$ALL" "$before"
    local begin=$SECONDS
    podman stop --time 45 "$daemon" >/dev/null
    note "drained in $((SECONDS - begin)) s, exit code $(podman inspect --format '{{.State.ExitCode}}' "$daemon")"
    podman logs "$daemon" 2>&1 | grep -E '"(stopping|stopped|message)":' | grep -E 'stopp' | tail -n 2 | sed 's/^/      /'
    [ "$(podman inspect --format '{{.State.ExitCode}}' "$daemon")" = 0 ] || fail "a drain ends with 0"
    [ "$(podman inspect --format '{{.State.Running}}' "$engine")" = true ] || fail "the engine ended with its daemon"
    note "the engine runs on: $(podman logs --tail 1 "$engine")"
    down "$1/sidecar.play.yaml"
}

too_small() {
    section "(a) with too small a volume, and with too small a limit"
    local daemon=inference-pod-tenderd
    LOOK=$daemon
    play "$1/small.play.yaml"
    wait_for "the daemon says what is missing" says "$daemon" 'needs [0-9]+ bytes, but its filesystem has [0-9]+ available' 1
    podman logs "$daemon" 2>&1 | grep -m 1 'needs' | sed 's/^/      /'
    down "$1/small.play.yaml"
    play "$1/limit.play.yaml"
    wait_for "the daemon says what is missing" says "$daemon" 'needs [0-9]+ bytes of memory, but the control group' 1
    podman logs "$daemon" 2>&1 | grep -m 1 'needs' | sed 's/^/      /'
    down "$1/limit.play.yaml"
}

node() {
    section "(b) A daemon of the node, and an engine in a pod of its own"
    play "$1/node.play.yaml"
    local daemon
    daemon=$(podman ps --all --format '{{.Names}}' | grep -m 1 tenderd$)
    LOOK=$daemon
    wait_for "the daemon is ready" podman exec "$daemon" tender ping --ready
    stat --format '      %n %A %u:%g' /run/tender-pods/sockets /dev/shm/tender-pods-arena
    play "$1/engines.play.yaml"
    local engine=inference-pod-vllm
    LOOK=$engine
    wait_for "the engine loads through shared memory of another pod" says "$engine" "$ALL" 2
    down "$1/engines.play.yaml"
    down "$1/node.play.yaml"
    note "both pods are gone; the node has kept $(du -h /dev/shm/tender-pods-arena | tail -n 1 | cut -f 1) of arena"
    play "$1/node.play.yaml"
    wait_for "a new pod of the daemon is ready" podman exec "$daemon" tender ping --ready
    play "$1/engines.play.yaml"
    wait_for "a new engine loads in its first round what the old one stored" says "$engine" "${ALL/\[0-9\]+/0}" 1
    podman logs "$engine" 2>&1 | head -n 1 | sed 's/^/      /'
}

if [ -n "${TENDER_PODS_INSIDE:-}" ]; then
    inside
else
    prepare
    enter
fi
