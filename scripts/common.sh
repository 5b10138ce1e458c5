# shellcheck shell=bash
# Helpers of the scripts beside it; sourced, never run.

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # for those who source this
VENV="$REPO/.venv"

section() { printf '\n=== %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }

# Says what is wrong and what to do about it, and ends the script.
fail() {
    printf '\nerror: %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}

# Digest of files and folders given relative to the repository, build outputs left out.
digest_of() {
    (cd "$REPO" && find "$@" -type f -not -path '*/target/*' -not -name '*.so' -not -name '*.pyc' -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)
}

# stamp_matches FILE DIGEST: true if FILE says that DIGEST was finished.
stamp_matches() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }
