#!/usr/bin/env bash
# Checks the GPU path on this machine and prints a table: kernels against the CPU truth, and their rates against plain
# copies. Needs a CUDA driver and no network; ends with 0 if all was right, 1 if not, 2 without a device.
#
#   gpu-check.sh          runs dist/gpu-check if there is one, else builds it
#   gpu-check.sh --pack   only makes dist/gpu-check, which runs on machines without Rust
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$REPO"

PACKED=dist/gpu-check

build() {
    command -v cargo >/dev/null || fail "neither $PACKED nor Rust is here" \
        "on a machine with Rust: scripts/gpu-check.sh --pack, and bring $PACKED along"
    section "Build"
    # Everything was fetched by an earlier build; if not, cargo says what is missing.
    cargo build --locked --offline --release --package tender-tests --bin tender-gpu-check
    mkdir -p "$PACKED"
    cp "${CARGO_TARGET_DIR:-target}/release/tender-gpu-check" "$PACKED/"
    strip --strip-debug "$PACKED/tender-gpu-check" 2>/dev/null || true
}

case ${1:-} in
--pack) build && note "made $PACKED" ;;
'')
    [ -x "$PACKED/tender-gpu-check" ] || build
    section "Machine"
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.memory,pcie.link.gen.max,pcie.link.width.max \
        --format=csv,noheader 2>/dev/null || note "nvidia-smi is not here"
    exec "$PACKED/tender-gpu-check"
    ;;
*) fail "what is '$1'?" "usage: scripts/gpu-check.sh [--pack]" ;;
esac
