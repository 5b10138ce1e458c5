"""The fence between Tender and the engine's step: nothing behind it raises.

A fault is a bug of ours or a state we do not understand, so the first one switches the side off for good. What the
engine must still be told after that (loads it waits for) is each hook's `otherwise`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol


class Guarded(Protocol):
    """An object with hooks."""

    broken: str | None
    """The hook that failed; None as long as none did."""

    def on_fault(self, hook: str) -> None:
        """Called once, in the `except` block of the fault."""


def hook(otherwise: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a method a hook: after a fault in any hook of its object, `otherwise` answers with the same arguments."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Guarded, *args: Any, **kwargs: Any) -> Any:
            if self.broken is None:
                try:
                    return method(self, *args, **kwargs)
                except Exception:
                    self.broken = method.__name__
                    self.on_fault(method.__name__)
            return otherwise(self, *args, **kwargs)

        return call

    return wrap


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """The `otherwise` of hooks that nobody waits for."""
