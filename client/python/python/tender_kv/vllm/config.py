"""`kv_connector_extra_config`, as a user writes it, checked once.

Keys of the client (`transport`, `load_deadline`, `staging_bytes`, `tls`, `token_file`, ...) are handed on as they
are: their names, defaults and checks live in the Rust client. The keys that only this connector knows are the fields
of `Settings`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tender_kv import _native
from tender_kv._native import ConfigError

_PLAN_KEYS = ("prompt_only", "max_store_tokens", "complete_chunks_only", "store_after_requests", "reuse_for")
_OWN_KEYS = ("address", "arena_bytes", "tokens_per_chunk", "blocks_per_chunk", *_PLAN_KEYS)
# Set by the connector: a user who gave them would be surprised either way.
_HIDDEN_KEYS = ("client_name",)


@dataclass(frozen=True)
class Settings:
    """What the user chose."""

    address: str | None
    """Where the daemon listens; None starts a private one."""
    arena_bytes: str | int | None
    """Arena of the private daemon, as a number or like "2 GiB"."""
    tokens_per_chunk: int | None
    blocks_per_chunk: int | None
    client: Mapping[str, Any]
    """The client's own keys, without the address."""
    plan: Mapping[str, Any]

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> Settings:
        """Raises ConfigError with a sentence for what cannot be used."""
        client_keys = tuple(key for key in json.loads(_native.default_client_config()) if key not in _HIDDEN_KEYS)
        known = sorted({*_OWN_KEYS, *client_keys})
        for key in extra:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                advice = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(known)}"
                raise ConfigError(f"kv_connector_extra_config: there is no key '{key}'; {advice}")
        settings = cls(
            address=_typed(extra, "address", str),
            arena_bytes=_typed(extra, "arena_bytes", (str, int)),
            tokens_per_chunk=_positive(extra, "tokens_per_chunk"),
            blocks_per_chunk=_positive(extra, "blocks_per_chunk"),
            client={key: extra[key] for key in client_keys if key in extra and key not in _OWN_KEYS},
            plan={key: extra[key] for key in _PLAN_KEYS if extra.get(key) is not None},
        )
        if settings.address is not None and settings.arena_bytes is not None:
            raise ConfigError(
                "kv_connector_extra_config: 'arena_bytes' is the private daemon's, and 'address' names another one; "
                "leave one of them out, or give that daemon's arena with its --arena-bytes"
            )
        if settings.tokens_per_chunk and settings.blocks_per_chunk:
            raise ConfigError("kv_connector_extra_config: give 'tokens_per_chunk' or 'blocks_per_chunk', not both")
        # The address of a private daemon is good by construction.
        client = settings.client_json(settings.address or "unix:/private", "check")
        _native.check_config(client, settings.plan_json())
        return settings

    def chunk_blocks(self, groups: Iterable[tuple[str, int]]) -> list[int]:
        """Blocks of a chunk in each group, given as its kind and the tokens of its blocks."""
        try:
            return _native.chunk_blocks(list(groups), tokens=self.tokens_per_chunk, blocks=self.blocks_per_chunk)
        except ConfigError as no:
            raise ConfigError(f"kv_connector_extra_config: {no}") from None

    def client_json(self, address: str, name: str) -> str:
        """The client's configuration, for a daemon at `address`."""
        return json.dumps({**self.client, "address": address, "client_name": name})

    def plan_json(self) -> str:
        """The planner's configuration."""
        return json.dumps(dict(self.plan))


def _typed(extra: Mapping[str, Any], key: str, kinds: type | tuple[type, ...]) -> Any:
    value = extra.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        raise ConfigError(f"kv_connector_extra_config: '{key}' cannot be {value!r}")
    return value


def _positive(extra: Mapping[str, Any], key: str) -> int | None:
    value = _typed(extra, key, int)
    if value is not None and value < 1:
        raise ConfigError(f"kv_connector_extra_config: '{key}' is at least 1, not {value}")
    return value
