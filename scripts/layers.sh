#!/usr/bin/env bash
# Who may depend on whom, as AGENTS.md and docs/design.md say; the compiler alone would let any of this pass.
set -euo pipefail
source "$(dirname "$0")/common.sh"
cd "$REPO"

broken=0

# forbid CRATE PATTERN WHY: CRATE must not depend, directly or not, on a crate whose name matches PATTERN.
forbid() {
    local found
    found=$(cargo tree --locked --quiet --package "$1" --edges normal,build --prefix none --format '{p}' |
        cut -d' ' -f1 | sort -u | grep -Fxv "$1" | grep -Ex "$2" || true)
    if [ -n "$found" ]; then
        printf '    %s depends on %s: %s\n' "$1" "$(echo "$found" | tr '\n' ' ')" "$3"
        broken=1
    fi
}

# forbid_words PATTERN WHY PATH...: no source under PATH names PATTERN.
forbid_words() {
    local pattern=$1 why=$2 found
    shift 2
    found=$(grep -rnE --include='*.rs' "$pattern" "$@" || true)
    if [ -n "$found" ]; then
        printf '    %s\n%s\n' "$why" "$found"
        broken=1
    fi
}

section "Layers"
forbid tender-proto 'tender-.*|pyo3|cudarc' "the contract stands alone"
forbid tender-trace 'tender-.*|pyo3' "traces know nothing of what is traced"
forbid tender-memory '.*' "it copies bytes"
forbid tender-kernels 'tender-(proto|daemon|client|kv|tests)|pyo3|tonic|tokio' "kernels know memory and nothing else"
forbid tender-daemon 'tender-(client|kernels|kv|tests)|pyo3|cudarc' "the daemon has no engine, no GPU and no Python in it"
forbid tender-daemon 'fail|loom' "faults and models are for tests; the daemon that ships has neither"
forbid tender-client 'loom' "models are for tests"
forbid tender-client 'tender-(daemon|kv|tests)|pyo3' "an engine's process does not carry the daemon"
forbid_words '\b(tonic|prost)::' "gRPC types stop at daemon/src/rpc; the domain does not name them" \
    daemon/src/{admission,lease,clock}.rs daemon/src/{engine,index,arena}
[ "$broken" -eq 0 ] || exit 1
note "kept"
