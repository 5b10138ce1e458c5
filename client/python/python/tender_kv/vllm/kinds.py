"""A model's layer groups as Tender sees them; nothing here needs the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FULL_ATTENTION = "full_attention"
MLA_LATENT = "mla_latent"
SLIDING_WINDOW = "sliding_window"
CHUNKED_LOCAL = "chunked_local"
RECURRENT = "recurrent"
"""The kinds, by the names that the native `describe` knows."""


class Unsupported(Exception):
    """A sentence: what about the engine's cache is not supported, so that it runs without Tender."""


@dataclass(frozen=True)
class Group:
    """One of the engine's groups that is cached; its index in a list of them is Tender's number of it."""

    engine_id: int
    """The engine's number of it."""
    kind: str
    tokens_per_block: int
    window_tokens: int
    """Tokens that a query sees, itself included; 0 where all are seen."""
    lookahead_tokens: int
    """Tokens after a slot that decide its bytes: draft layers only."""
    layers: Mapping[str, Any]
    """Each layer's own description, in the engine's order."""


def load_fails_as_a_whole(groups: list[Group]) -> bool:
    """Whether an engine cannot go on from the middle of a load: not unless every slot of the prefix stands for itself,
    as in a single group of full attention."""
    return len(groups) != 1 or groups[0].kind not in (FULL_ATTENTION, MLA_LATENT)


def in_words(groups: list[Group]) -> str:
    """The groups, for a log line."""
    return ", ".join(
        f"{group.kind}{f' of {group.window_tokens}' if group.window_tokens else ''}"
        f"{' (draft)' if group.lookahead_tokens else ''}: {len(group.layers)} layers in blocks of "
        f"{group.tokens_per_block}"
        for group in groups
    )


def is_latent(spec: Any) -> bool:
    """Whether a layer keeps one latent for all heads (MLA): every rank has all of it."""
    return getattr(spec, "head_size_v", None) == 0
