"""Which parts of a chunk each tensor-parallel rank holds, so that engines of different sizes share them.

A chunk is cut along the KV heads into as many parts as the model allows, not as many as there are ranks: what two ranks
stored, one or four can load. Where heads cannot be cut like that, each rank is a part, and the number of ranks is part
of the namespace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tender_kv.vllm.kinds import RECURRENT, Group, is_latent

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec

MAX_PARTS = 8
"""More ranks than that are rare, and every part costs a digest and a place in the index."""


@dataclass(frozen=True)
class Shard:
    """What one rank holds of a group's chunks; the fields of the native GroupShard and its Writer."""

    parts: int
    first: int
    count: int
    replica: int = 0
    replicas: int = 1


@dataclass(frozen=True)
class Ranks:
    """One rank's shards, a group each, and the number that stands for the rank geometry in the namespace."""

    shards: list[Shard]
    tensor_parallel: int


def of_rank(config: VllmConfig, groups: list[Group]) -> Ranks:
    """What this process's rank holds."""
    parallel = config.parallel_config
    ranks = parallel.tensor_parallel_size
    return shards(groups, ranks, parallel.rank % ranks, config.model_config.get_total_num_kv_heads())


def shards(groups: list[Group], ranks: int, rank: int, model_heads: int) -> Ranks:
    """What rank `rank` of `ranks` holds; the layers have `model_heads` KV heads in all unless they say otherwise."""
    heads = [_group_heads(group, ranks, model_heads) for group in groups]
    if None not in heads:
        split = [total for group, total in zip(groups, heads, strict=True) if not _is_latent_group(group)]
        parts = _common_parts([total for totals in split for total in totals])
        fitting = [
            _shard(group, totals, 1 if _is_latent_group(group) else parts, ranks, rank)
            for group, totals in zip(groups, heads, strict=True)
        ]
        if None not in fitting:
            return Ranks(fitting, parts)
    alone = [Shard(1, 0, 1, rank, ranks) if _is_latent_group(group) else Shard(ranks, rank, 1) for group in groups]
    return Ranks(alone, ranks)


def _common_parts(totals: list[int]) -> int:
    """The largest number of parts that cuts every layer's heads evenly."""
    common = math.gcd(*totals) if totals else 1
    return max(parts for parts in range(1, min(common, MAX_PARTS) + 1) if common % parts == 0)


def _is_latent_group(group: Group) -> bool:
    return all(is_latent(spec) for spec in group.layers.values())


def _group_heads(group: Group, ranks: int, model_heads: int) -> list[int] | None:
    """KV heads of the whole model in each layer; None where that is not known or a cut along them is not one along the
    page's axes."""
    if group.kind == RECURRENT:
        return None
    latent = _is_latent_group(group)
    totals = [1 if latent else _layer_heads(spec, ranks, model_heads) for spec in group.layers.values()]
    return None if None in totals else totals


def _layer_heads(spec: KVCacheSpec | Any, ranks: int, model_heads: int) -> int | None:
    heads = spec.num_kv_heads
    if is_latent(spec) or spec.num_heads != heads:
        return None
    if heads == max(1, model_heads // ranks) and (model_heads % ranks == 0 or ranks % model_heads == 0):
        return model_heads
    # A layer with a number of its own. If it has one head on each of several ranks, these may be replicas.
    return heads * ranks if heads > 1 or ranks == 1 else None


def _shard(group: Group, totals: list[int], parts: int, ranks: int, rank: int) -> Shard | None:
    """The parts of this rank; None if its heads are not whole parts, the same ones in every layer."""
    found = set()
    for spec, total in zip(group.layers.values(), totals, strict=True):
        heads = 1 if is_latent(spec) else spec.num_kv_heads
        replicas, uneven = divmod(ranks * heads, total)
        per_part = total // parts
        if uneven or not replicas or heads % per_part:
            return None
        count = heads // per_part
        found.add(Shard(parts, rank // replicas * count, count, rank % replicas, replicas))
    return found.pop() if len(found) == 1 else None
