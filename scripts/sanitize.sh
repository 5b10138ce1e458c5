#!/usr/bin/env bash
# The tests of the crates with unsafe code under AddressSanitizer: reads and writes outside of what was allocated, use
# after free, double free, leaks of memory. The standard library is not rebuilt and not looked into.
#
# The sanitizer is a compiler switch that stable Rust hides behind RUSTC_BOOTSTRAP. It has a target folder of its own,
# target/sanitize (or $CARGO_TARGET_DIR), because everything is compiled differently.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$REPO"

TARGET=x86_64-unknown-linux-gnu
if [ "$(rustc -vV | sed -n 's/^host: //p')" != "$TARGET" ]; then
    note "this machine is no $TARGET; the sanitizer is tried there only"
    exit 1
fi
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target/sanitize}
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address
# Stack that a function has returned from is not to be used either.
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:abort_on_error=0

# Every file that allows unsafe code belongs to a crate whose tests run below; a new one elsewhere is refused here.
section "Where unsafe code is"
islands=$(grep -rlE '^(#!?\[(allow|expect)\(unsafe_code|    unsafe_code,)' --include='*.rs' . --exclude-dir=target |
    sed 's|^\./||' | sort)
while read -r island; do
    case $island in
    proto/* | daemon/* | client/src/* | client/benches/* | kernels/* | tests/*) note "$island" ;;
    # An extension module does not link as a test binary; its unsafe block is a call of client/src/layout/desc.rs.
    client/python/*) note "$island (not run: it needs an interpreter that was built alike)" ;;
    *)
        note "$island is in no crate that is tested here: add it to scripts/sanitize.sh"
        exit 1
        ;;
    esac
done <<<"$islands"

section "AddressSanitizer notices a read behind a buffer"
# A sanitizer that is not there finds nothing either.
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
cat >"$probe/probe.rs" <<'RUST'
fn main() {
    let bytes = vec![0u8; std::env::args().count() * 16];
    let behind = unsafe { std::ptr::read_volatile(bytes.as_ptr().add(bytes.len())) };
    println!("{behind}");
}
RUST
rustc -Zsanitizer=address --target "$TARGET" -o "$probe/probe" "$probe/probe.rs"
if "$probe/probe" >"$probe/out" 2>&1 || ! grep -q heap-buffer-overflow "$probe/out"; then
    note "it did not; what follows would prove nothing"
    exit 1
fi
note "it does"

section "Unit tests of the crates with unsafe code"
cargo test --locked --target "$TARGET" -p tender-proto -p tender-kernels -p tender-client -p tender-daemon --lib \
    -- --test-threads "$(nproc)"

section "Client and daemon together, over shared memory and over the network"
cargo test --locked --target "$TARGET" -p tender-tests --test roundtrip --test roundtrip_client --test garbage \
    --test bad_input --test full -- --test-threads "$(nproc)"
section "No finding"
