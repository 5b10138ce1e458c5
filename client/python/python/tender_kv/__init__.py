"""Tender: the KV cache of LLM inference engines, held outside the GPU.

`tender_kv.vllm` puts vLLM on Tender; `tender_kv.programs` carries the tool `tender` and the daemon `tenderd`. The
native extension is imported on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import Any

_NATIVE = ("ConfigError", "LayoutError", "RefusedError", "TenderError", "__version__")

__all__ = ["ConfigError", "LayoutError", "RefusedError", "TenderError"]


def __getattr__(name: str) -> Any:
    if name in _NATIVE:
        from tender_kv import _native

        return getattr(_native, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
