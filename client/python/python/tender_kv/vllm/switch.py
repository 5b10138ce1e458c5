"""On, until something fails that should not: then off for good, with one log line, and the engine runs on."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

# A child of vLLM's logger, so that its format and level apply.
logger = logging.getLogger("vllm.tender_kv")

Hook = TypeVar("Hook", bound=Callable[..., Any])


class Switch:
    """Whether one role of the connector works, and if not, why."""

    def __init__(self) -> None:
        self.off_because: str | None = None
        self.hook_failures = 0

    @property
    def is_on(self) -> bool:
        return self.off_because is None

    def turn_off(self, sentence: str) -> None:
        """For what was foreseen: a model or an engine that is not supported, a daemon that does not start."""
        if self.is_on:
            self.off_because = sentence
            logger.warning("Tender is off: %s The engine runs without it.", sentence)

    def hook_failed(self, hook: str, error: Exception) -> None:
        """For what was not: a mistake of ours, or an engine we do not know well enough."""
        self.hook_failures += 1
        if self.is_on:
            self.off_because = f"{hook} failed: {error!r}."
            logger.error("Tender is off, since %s failed; the engine runs without it.", hook, exc_info=error)


def guarded(otherwise: Callable[[Any], Any]) -> Callable[[Hook], Hook]:
    """Keeps every exception of a hook from the engine: the hook's object is switched off by its `switch` and answers
    `otherwise(object)`, now and from then on whatever its role says for being off."""

    def wrap(hook: Hook) -> Hook:
        @functools.wraps(hook)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return hook(self, *args, **kwargs)
            except Exception as error:
                self.switch.hook_failed(hook.__name__, error)
                return otherwise(self)

        return call  # type: ignore[return-value]

    return wrap
