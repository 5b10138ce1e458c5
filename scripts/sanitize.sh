#!/usr/bin/env bash
# The tests of the crates with unsafe code under a sanitizer.
#
#   scripts/sanitize.sh address   reads and writes outside of what was allocated, use after free, leaks of memory
#   scripts/sanitize.sh thread    two threads at one place without an order between them: the daemon's engine only
#
# Sanitizers are compiler switches that stable Rust hides behind RUSTC_BOOTSTRAP. The standard library is not rebuilt:
# what goes wrong inside of it is not seen; generic code, atomics and locks of ours are compiled here and are.
# Each has a target folder of its own, target/sanitize-NAME (or $CARGO_TARGET_DIR), as everything is compiled differently.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$REPO"

NAME=${1:-address}
TARGET=x86_64-unknown-linux-gnu
[ "$(rustc -vV | sed -n 's/^host: //p')" = "$TARGET" ] ||
    fail "sanitizers were tried on $TARGET only" "run this there"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target/sanitize-$NAME}
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=$NAME"
case $NAME in
address) export ASAN_OPTIONS=detect_stack_use_after_return=1 ;;
thread) export RUSTFLAGS="$RUSTFLAGS -Cunsafe-allow-abi-mismatch=sanitizer" TSAN_OPTIONS=halt_on_error=1 ;;
*) fail "there is no sanitizer '$NAME' here" "use address or thread" ;;
esac

# notices PROGRAM WHAT: the sanitizer must find what is wrong with a small program. One that is not there finds nothing.
notices() {
    local folder flags
    folder=$(mktemp -d)
    read -ra flags <<<"$RUSTFLAGS"
    echo "$1" >"$folder/probe.rs"
    rustc "${flags[@]}" --target "$TARGET" -o "$folder/probe" "$folder/probe.rs"
    if "$folder/probe" >"$folder/said" 2>&1 || ! grep -q "$2" "$folder/said"; then
        fail "the sanitizer did not notice a planted mistake ($2)" "what follows would prove nothing; see $folder"
    fi
    rm -rf "$folder"
    note "it notices a $2"
}

tests() { cargo test --locked --target "$TARGET" "$@"; }

if [ "$NAME" = thread ]; then
    section "ThreadSanitizer"
    notices 'struct Cell(std::cell::UnsafeCell<u64>);
        unsafe impl Sync for Cell {}
        static CELL: Cell = Cell(std::cell::UnsafeCell::new(0));
        fn add() { for _ in 0..1000 { unsafe { *CELL.0.get() += 1 } } }
        fn main() { let other = std::thread::spawn(add); add(); other.join().unwrap(); }' "data race"
    section "The daemon's engine under many threads"
    tests -p tender-daemon --lib engine::tests::threads
    section "Done: nothing was found"
    exit 0
fi

# Every file that allows unsafe code must belong to a crate whose tests run below.
section "Where unsafe code is"
islands=$(grep -rlE '^(#!?\[(allow|expect)\(unsafe_code|    unsafe_code,)' --include='*.rs' --exclude-dir=target . |
    sed 's|^\./||' | sort)
while read -r island; do
    case $island in
    # An extension module does not link as a test binary. Its one unsafe block calls client/src/layout/desc.rs.
    client/python/*) note "$island (not run: it needs an interpreter that was built alike)" ;;
    proto/* | daemon/* | client/* | kernels/* | tests/*) note "$island" ;;
    *) fail "$island is in no crate that is tested here" "add it to scripts/sanitize.sh" ;;
    esac
done <<<"$islands"

section "AddressSanitizer"
notices 'fn main() {
        let bytes = vec![0u8; std::env::args().count() * 16];
        println!("{}", unsafe { std::ptr::read_volatile(bytes.as_ptr().add(bytes.len())) });
    }' "heap-buffer-overflow"
section "Unit tests of the crates with unsafe code"
# But for one whose purpose is to leave a thread behind with what it holds: that of a disk which hangs.
tests -p tender-proto -p tender-kernels -p tender-client -p tender-daemon --lib -- --skip a_disk_that_hangs_is_left_behind
section "Client and daemon together, over shared memory and over the network"
tests -p tender-tests --test roundtrip --test roundtrip_client --test garbage --test bad_input --test full
section "Done: nothing was found"
