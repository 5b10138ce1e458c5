"""`python -m tender_kv tender ...` and `python -m tender_kv tenderd ...`: the programs where PATH has no scripts."""

import sys

from tender_kv import programs

_PROGRAMS = {"tender": programs.tender, "tenderd": programs.tenderd}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in _PROGRAMS:
        sys.exit("usage: python -m tender_kv {tender,tenderd} ...")
    _PROGRAMS[sys.argv.pop(1)]()
