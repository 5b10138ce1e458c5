"""Tender for vLLM: name `TenderConnector` with module path `tender_kv.vllm` in `--kv-transfer-config`.

vLLM itself is imported only when the connector is asked for.
"""

from __future__ import annotations

from typing import Any

__all__ = ["TenderConnector"]


def __getattr__(name: str) -> Any:
    if name == "TenderConnector":
        from tender_kv.vllm.connector import TenderConnector

        return TenderConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
