#!/usr/bin/env bash
# Builds the image of deploy/Dockerfile as localhost/tender:VERSION and tries it. Nothing is built again that is there and whose
# sources have not changed.
#
#   scripts/image.sh                 with the bases that the Dockerfile names, from their registry
#   scripts/image.sh --local-base    where no registry can be reached: makes both bases here, a Debian by debootstrap (as root) and
#                                    the same with this machine's Rust
#   scripts/image.sh --prebuilt DIR  takes tenderd and tender out of DIR (such as target/release) instead of compiling in the
#                                    image; with the wheel's package if there is one in .venv. For tests.
#
# BUILDER names another program than the first of podman, buildah, docker. IMAGE names the result otherwise.
set -euo pipefail
source "$(dirname "$0")/common.sh"

VERSION=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$REPO/Cargo.toml")
IMAGE=${IMAGE:-localhost/tender:$VERSION}
DEBIAN=bookworm
DEBIAN_MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
BASES="$REPO/target/image"
LOCAL_DEBIAN=localhost/tender-base:$DEBIAN
LOCAL_RUST=localhost/tender-rust:$DEBIAN

local_base=no prebuilt=
while [ $# -gt 0 ]; do
    case $1 in
        --local-base) local_base=yes ;;
        --prebuilt) prebuilt=${2:?--prebuilt needs a folder}; shift ;;
        *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 64 ;;
    esac
    shift
done

find_builder() {
    local candidate
    for candidate in ${BUILDER:-} podman buildah docker; do
        if command -v "$candidate" >/dev/null; then BUILDER=$candidate; return; fi
    done
    fail "nothing here builds images" "install podman, buildah or docker; on Debian 12: apt-get install podman buildah runc"
}

# Rootless or in a sandbox, the engine's default limits may be more than this process may set, and crun wants one whole
# hierarchy of control groups.
configure_engine() {
    [ -n "${CONTAINERS_CONF:-}" ] && return
    mkdir -p "$BASES"
    printf '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n' >"$BASES/containers.conf"
    if [ -d /sys/fs/cgroup/memory ] && command -v runc >/dev/null; then
        printf '[engine]\nruntime = "runc"\n' >>"$BASES/containers.conf"
    fi
    export CONTAINERS_CONF="$BASES/containers.conf"
}

have_image() {
    case $BUILDER in
        docker) docker image inspect "$1" >/dev/null 2>&1 ;;
        *) "$BUILDER" inspect --type image "$1" >/dev/null 2>&1 ;;
    esac
}

# build TAG ARGUMENTS...
build() {
    local tag=$1
    shift
    case $BUILDER in
        docker) docker build --tag "$tag" "$@" ;;
        buildah) buildah bud --format docker --layers --tag "$tag" "$@" ;;
        # Health checks are a matter of the docker format.
        *) "$BUILDER" build --format docker --layers --tag "$tag" "$@" ;;
    esac
}

make_local_bases() {
    if ! have_image "$LOCAL_DEBIAN"; then
        [ "$(id -u)" -eq 0 ] || fail "debootstrap needs root" "run this as root, or without --local-base"
        command -v debootstrap >/dev/null || fail "debootstrap is missing" "on Debian: apt-get install debootstrap"
        section "A Debian of its own (half a minute)"
        rm -rf "$BASES/root"
        mkdir -p "$BASES/root"
        debootstrap --variant=minbase "$DEBIAN" "$BASES/root" "$DEBIAN_MIRROR" >"$BASES/debootstrap.log" ||
            fail "debootstrap ended with an error" "its log: $BASES/debootstrap.log"
        rm -rf "$BASES"/root/var/cache/apt/* "$BASES"/root/var/lib/apt/lists/* "$BASES"/root/var/log/*
        mkdir -p "$BASES/base"
        tar --sort=name --mtime=@0 -C "$BASES/root" -cf "$BASES/base/root.tar" --exclude=./dev/\* .
        printf 'FROM scratch\nADD root.tar /\nCMD ["/bin/sh"]\n' >"$BASES/base/Dockerfile"
        build "$LOCAL_DEBIAN" --file "$BASES/base/Dockerfile" "$BASES/base"
        rm -rf "$BASES/root" "$BASES/base"
    fi
    note "$LOCAL_DEBIAN is there"
    [ -n "$prebuilt" ] && return
    if ! have_image "$LOCAL_RUST"; then
        section "The same with this machine's Rust"
        rm -rf "$BASES/rust"
        mkdir -p "$BASES/rust/certificates"
        # A proxy in between may sign with an authority of this machine's own.
        cp /etc/ssl/certs/ca-certificates.crt "$BASES/rust/"
        local toolchain
        toolchain=$(rustc --print sysroot)
        tar -C "$toolchain" --exclude=./share -cf "$BASES/rust/toolchain.tar" .
        cat >"$BASES/rust/Dockerfile" <<END
FROM $LOCAL_DEBIAN
RUN echo 'deb $DEBIAN_MIRROR $DEBIAN main' >/etc/apt/sources.list && apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates gcc g++ libc6-dev make
COPY ca-certificates.crt /etc/ssl/certs/
ADD toolchain.tar /usr/local/
ENV CARGO_HOME=/usr/local/cargo
END
        build "$LOCAL_RUST" --network host --file "$BASES/rust/Dockerfile" "$BASES/rust"
        rm -rf "$BASES/rust"
    fi
    note "$LOCAL_RUST is there"
}

# Puts the programs of a folder where the Dockerfile's stage looks for them.
gather_prebuilt() {
    local to="$BASES/prebuilt" package
    rm -rf "$to"
    mkdir -p "$to/bin" "$to/python" "$to/run"
    cp "$prebuilt/tenderd" "$prebuilt/tender" "$to/bin/" || fail "no programs in $prebuilt" "run: make build"
    strip --strip-debug "$to"/bin/*
    for package in "$VENV"/lib/python3*/site-packages/tender_kv; do
        if [ -d "$package" ]; then cp -r "$package" "$to/python/"; fi
    done
    find "$to" -name __pycache__ -prune -exec rm -rf {} +
    # The same files, the same image.
    find "$to" -exec touch --date="@$SOURCE_DATE_EPOCH" {} +
}

try() {
    section "Trying $IMAGE"
    [ "$BUILDER" = buildah ] && { note "buildah runs nothing: not tried"; return; }
    local run=("$BUILDER" run --rm --no-healthcheck --read-only --cap-drop ALL --security-opt no-new-privileges --network none)
    note "$("${run[@]}" "$IMAGE" --version)"
    note "$("${run[@]}" --entrypoint tender "$IMAGE" --version)"
    note "$("$BUILDER" image inspect --format '{{.Size}} bytes, user {{.Config.User}}' "$IMAGE")"
}

find_builder
configure_engine
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$REPO" log -1 --format=%ct 2>/dev/null || echo 0)}
arguments=(--file "$REPO/deploy/Dockerfile" --build-arg "VERSION=$VERSION"
    --build-arg "REVISION=$(git -C "$REPO" rev-parse HEAD 2>/dev/null || echo unknown)")
case $BUILDER in docker) ;; *) arguments+=(--timestamp "$SOURCE_DATE_EPOCH") ;; esac
if [ "$local_base" = yes ]; then
    section "Bases"
    make_local_bases
    arguments+=(--build-arg "DEBIAN_IMAGE=$LOCAL_DEBIAN" --build-arg "RUST_IMAGE=$LOCAL_RUST")
    case $BUILDER in docker) ;; *) arguments+=(--pull=never) ;; esac
    # What this machine has downloaded or compiled already is not downloaded or compiled again.
    registry=${CARGO_HOME:-$HOME/.cargo}/registry
    if [ "$BUILDER" != docker ] && [ -z "$prebuilt" ]; then
        mkdir -p "$registry" "$BASES/cargo"
        arguments+=(--volume "$registry:/usr/local/cargo/registry" --volume "$BASES/cargo:/target")
    fi
fi
if [ -n "$prebuilt" ]; then
    gather_prebuilt
    arguments+=(--target prebuilt)
fi
section "$IMAGE"
build "$IMAGE" "${arguments[@]}" --network host "$REPO"
try
note "done"
