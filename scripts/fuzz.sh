#!/usr/bin/env bash
# Runs fuzz targets under libFuzzer, on the stable toolchain: scripts/fuzz.sh [TARGET...], all of them without a name.
#
#   MINUTES=20   for each target                  JOBS=1   targets at one time
#   KEEP=1       afterwards, add to tests/fuzz/corpus what reaches code that its inputs do not
#   ASAN=1       with AddressSanitizer (slower; uses the stable compiler's unstable flag)
#
# What is found on the way is kept in target/fuzz/corpus, so that the next run goes on from there. An input that breaks
# something is kept in target/fuzz/findings; replay it with: scripts/fuzz.sh --replay TARGET FILE
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$REPO"

MINUTES=${MINUTES:-20}
JOBS=${JOBS:-1}
WORK=${CARGO_TARGET_DIR:-$REPO/target}/fuzz
HOST=$(rustc -vV | sed -n 's/^host: //p')
PROGRAM=$WORK/$HOST/release/tender-fuzz

# What libFuzzer watches: edges, comparisons, and the table that names them.
flags=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares)
if [ -n "${ASAN:-}" ]; then
    export RUSTC_BOOTSTRAP=1
    flags+=(-Zsanitizer=address)
fi

build() {
    section "Build"
    command -v c++ >/dev/null || fail "there is no C++ compiler" "libFuzzer is built from source: install g++ or clang"
    # The same versions as everywhere; cargo adds libFuzzer to them.
    cp Cargo.lock tests/fuzz/Cargo.lock
    RUSTFLAGS="${flags[*]}" cargo build --release --manifest-path tests/fuzz/Cargo.toml \
        --target "$HOST" --target-dir "$WORK"
}

# Numbers of a target's log: executions, edges and inputs kept, as libFuzzer last said.
last_line() { grep -aE '^#[0-9]+' "$1" | tail -n 1; }
executions() { last_line "$1" | sed -nE 's/^#([0-9]+).*/\1/p'; }
edges() { last_line "$1" | sed -nE 's/.* cov: ([0-9]+).*/\1/p'; }
edges_at_first() { grep -aE '^#[0-9]+.*INITED' "$1" | sed -nE 's/.* cov: ([0-9]+).*/\1/p'; }
findings() { find "$WORK/findings/$1" -type f | wc -l; }

fuzz() {
    local name=$1 log=$WORK/logs/$1.log
    mkdir -p "$WORK/corpus/$name" "$WORK/findings/$name" "$WORK/logs" "tests/fuzz/corpus/$name"
    TENDER_FUZZ_TARGET=$name nice -n 19 "$PROGRAM" -max_total_time="$((MINUTES * 60))" -timeout=30 -rss_limit_mb=4096 \
        -max_len=4096 -print_final_stats=1 -artifact_prefix="$WORK/findings/$name/" \
        "$WORK/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1 &
    local program=$! minute=0
    while kill -0 "$program" 2>/dev/null; do
        sleep 5
        minute=$((minute + 5))
        if [ $((minute % 60)) -eq 0 ]; then
            note "$name, minute $((minute / 60)) of $MINUTES: $(last_line "$log" | tr '\t' ' ')"
        fi
    done
    wait "$program" || note "$name: stopped by a finding; the end of $log says more"
}

keep() {
    local name=$1
    TENDER_FUZZ_TARGET=$name "$PROGRAM" -merge=1 "tests/fuzz/corpus/$name" "$WORK/corpus/$name" 2>&1 |
        grep -a '^MERGE-OUTER: [0-9]* new files' | tail -n 1 | sed "s/^/    $name: /"
}

if [ "${1:-}" = --replay ]; then
    build
    TENDER_FUZZ_TARGET=$2 exec "$PROGRAM" "$3"
fi
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    mapfile -t targets < <(sed -nE 's/^    \("([a-z]+)", .*/\1/p' tests/src/fuzz/mod.rs)
fi
build

section "Fuzz ${targets[*]}, $MINUTES minutes each"
for name in "${targets[@]}"; do
    while [ "$(jobs -pr | wc -l)" -ge "$JOBS" ]; do wait -n || true; done
    fuzz "$name" &
done
wait

section "Result"
found=0
printf '    %-12s %14s %22s %9s\n' target executions "edges first -> last" findings
for name in "${targets[@]}"; do
    log=$WORK/logs/$name.log
    printf '    %-12s %14s %22s %9s\n' "$name" "$(executions "$log")" "$(edges_at_first "$log") -> $(edges "$log")" \
        "$(findings "$name")"
    found=$((found + $(findings "$name")))
    if [ -n "${KEEP:-}" ]; then keep "$name"; fi
done
[ "$found" -eq 0 ] || fail "$found inputs broke something" "they are in $WORK/findings" \
    "replay one with: scripts/fuzz.sh --replay TARGET FILE"
