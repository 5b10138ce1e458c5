"""Which parts each rank holds: the same for the same heads, whatever the number of ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tender_kv.vllm.kinds import FULL_ATTENTION, MLA_LATENT, RECURRENT, SLIDING_WINDOW, Group
from tender_kv.vllm.parts import Ranks, Shard, shards


def attention(heads, head_slots=None):
    return SimpleNamespace(num_kv_heads=heads, num_heads=head_slots or heads, head_size_v=32)


LATENT = SimpleNamespace(num_kv_heads=1, num_heads=1, head_size_v=0)
STATE = SimpleNamespace(num_heads=1)


def group(kind, *specs):
    layers = {f"l{index}": spec for index, spec in enumerate(specs)}
    return Group(engine_id=0, kind=kind, tokens_per_block=16, window_tokens=0, lookahead_tokens=0, layers=layers)


def heads_of(model_heads, ranks, rank):
    """Heads that a rank holds; the engine gives ranks beyond one per head a copy."""
    if ranks <= model_heads:
        per_rank = model_heads // ranks
        return set(range(rank * per_rank, (rank + 1) * per_rank))
    return {rank // (ranks // model_heads)}


# The engine starts where heads or ranks are a multiple of the other.
SIZES = [
    (heads, ranks)
    for heads in (1, 2, 4, 8, 12, 16, 64)
    for ranks in (1, 2, 4, 8)
    if heads % ranks == 0 or ranks % heads == 0
]


@pytest.mark.parametrize(("model_heads", "ranks"), SIZES)
def test_a_part_is_the_same_heads_for_any_number_of_ranks(model_heads, ranks):
    one_rank = shards([group(FULL_ATTENTION, attention(model_heads))], 1, 0, model_heads)
    parts = one_rank.tensor_parallel
    per_part = model_heads // parts
    told = {}
    for rank in range(ranks):
        spec = attention(max(1, model_heads // ranks))
        found = shards([group(FULL_ATTENTION, spec)], ranks, rank, model_heads)
        if found.tensor_parallel != parts:
            # Ranks that do not hold whole parts: each is a part, in a namespace of its own.
            assert parts % ranks
            assert found == Ranks([Shard(ranks, rank, 1)], ranks)
            continue
        (shard,) = found.shards
        held = range(shard.first, shard.first + shard.count)
        heads = {head for part in held for head in range(part * per_part, (part + 1) * per_part)}
        assert heads == heads_of(model_heads, ranks, rank)
        for part in held:
            told.setdefault(part, []).append((shard.replica, shard.replicas))
    for writers in told.values():
        # Every part is stored by exactly one of the ranks that hold it.
        assert sorted(replica for replica, _ in writers) == list(range(writers[0][1]))
        assert {replicas for _, replicas in writers} == {len(writers)}


def test_parts_fit_every_group():
    groups = [group(FULL_ATTENTION, attention(2)), group(SLIDING_WINDOW, attention(6), attention(6))]
    found = shards(groups, 2, 1, 12)
    # 4 heads in all in one group and 12 in the other.
    assert found == Ranks([Shard(4, 2, 2), Shard(4, 2, 2)], 4)


def test_a_latent_is_one_part_that_the_ranks_take_turns_to_store():
    found = [shards([group(MLA_LATENT, LATENT)], 4, rank, 1) for rank in range(4)]
    assert found == [Ranks([Shard(1, 0, 1, rank, 4)], 1) for rank in range(4)]


def test_states_are_one_part_per_rank():
    groups = [group(RECURRENT, STATE), group(FULL_ATTENTION, attention(2)), group(MLA_LATENT, LATENT)]
    found = shards(groups, 2, 1, 4)
    assert found == Ranks([Shard(2, 1, 1), Shard(2, 1, 1), Shard(1, 0, 1, 1, 2)], 2)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(attention(2, head_slots=4), id="slots that are no heads"),
        pytest.param(attention(1), id="one head a rank, perhaps a copy"),
    ],
)
def test_heads_that_cannot_be_told_are_not_cut(spec):
    assert shards([group(FULL_ATTENTION, spec)], 2, 1, 8) == Ranks([Shard(2, 1, 1)], 2)
