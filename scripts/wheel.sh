#!/usr/bin/env bash
# Builds the wheel of tender_kv into dist/ and installs it into .venv; skipped while no source of it has changed.
set -euo pipefail
source "$(dirname "$0")/common.sh"

STAMP="$VENV/.tender-wheel"

section "Wheel"
wanted=$(digest_of scripts/wheel.sh Cargo.toml Cargo.lock proto client kernels daemon)
if stamp_matches "$STAMP" "$wanted" && ls "$REPO"/dist/*.whl >/dev/null 2>&1; then
    note "nothing to do (dist/ and .venv are up to date)"
    exit 0
fi
rm -f "$STAMP" "$REPO"/dist/tender_kv-*.whl
(cd "$REPO/client/python" && "$VENV/bin/maturin" build --release --out "$REPO/dist")
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$REPO"/dist/tender_kv-*.whl
note "installed $(cd "$REPO/dist" && echo tender_kv-*.whl)"
printf '%s\n' "$wanted" >"$STAMP"
