"""`python -m tender_kv.daemon`: `tenderd` for whoever has an interpreter and no PATH to the installed script."""

from __future__ import annotations

import sys

from tender_kv.programs import tenderd

if __name__ == "__main__":
    sys.exit(tenderd())
