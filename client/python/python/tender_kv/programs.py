"""Entry points of the programs that the wheel carries beside the client."""

from __future__ import annotations

import sys


def tender() -> int:
    """The operator's tool."""
    from tender_kv import _native

    return _native.run_tool(["tender", *sys.argv[1:]])


def tenderd() -> int:
    """The daemon; returns when it was told to end."""
    from tender_kv import _native

    return _native.run_daemon(["tenderd", *sys.argv[1:]])
