#!/usr/bin/env bash
# Records what both processes of a benchmark do and draws it: target/flame/PART.svg, to be opened in a browser. Takes perf, and `make build`.
#
#   scripts/flamegraph.sh PART [ARGUMENTS OF tender bench...]     PART: shm, tcp, lookups
#
# Stacks of Rust code are whole only in programs that were built with RUSTFLAGS="-C force-frame-pointers=yes".
set -euo pipefail
source "$(dirname "$0")/common.sh"

INFERNO_VERSION=0.12.4
TOOLS=${XDG_CACHE_HOME:-$HOME/.cache}/tender/inferno-$INFERNO_VERSION
OUT="$REPO/target/flame"

part=${1:?name what to record: shm, tcp or lookups}
shift
command -v perf >/dev/null || fail "perf is missing" "on Debian: apt-get install linux-perf"
[ -x "$REPO/target/release/tender" ] || fail "nothing is built" "run: make build"
if [ ! -x "$TOOLS/bin/inferno-flamegraph" ]; then
    section "inferno, which draws (a few minutes, once)"
    cargo install --locked --quiet --version "$INFERNO_VERSION" --no-default-features --features cli --root "$TOOLS" inferno
fi

mkdir -p "$OUT"
section "tender bench --only $part"
perf record --quiet --freq 999 --call-graph fp --output "$OUT/$part.data" -- \
    "$REPO/target/release/tender" bench --only "$part" "$@"
section "Drawing"
# Threads of one process are told apart; what takes less than a thousandth is left out.
perf script --input "$OUT/$part.data" 2>/dev/null | "$TOOLS/bin/inferno-collapse-perf" 2>/dev/null |
    "$TOOLS/bin/inferno-flamegraph" --title "tender bench --only $part" --minwidth 0.1 --hash >"$OUT/$part.svg"
rm -f "$OUT/$part.data"
note "$OUT/$part.svg"
