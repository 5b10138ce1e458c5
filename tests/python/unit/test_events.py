"""What Tender tells routers in vLLM's words: who believes every event knows what the daemon holds, no more."""

from __future__ import annotations

import hashlib
import random
from types import SimpleNamespace

import pytest
import torch
from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from tender_kv.vllm import events
from tender_kv.vllm.events import KvEvents
from tender_kv.vllm.kinds import FULL_ATTENTION, SLIDING_WINDOW, Group

_HASH_TOKENS = 4
_FULL = 0b11


def _cache():
    full = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype=torch.float32)
    window = SlidingWindowSpec(block_size=8, num_kv_heads=1, head_size=8, dtype=torch.float32, sliding_window=16)
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in (window, full)]
    return SimpleNamespace(hash_block_size=_HASH_TOKENS, kv_cache_groups=groups)


def _groups():
    """Tender's group 0 is the engine's group 1."""
    full = Group(1, FULL_ATTENTION, 4, 0, 0, {})
    window = Group(0, SLIDING_WINDOW, 8, 16, 0, {})
    return [full, window]


def _events(**changes):
    return KvEvents(_groups(), [2, 1], _cache(), **{"local": True, **changes})


def _request(tokens, adapter=None):
    """Block hashes chain, and have the adapter's name in them, as vLLM's."""
    hashes, parent = [], b""
    for end in range(_HASH_TOKENS, len(tokens) + 1, _HASH_TOKENS):
        parent = hashlib.sha256(repr((parent, tokens[end - _HASH_TOKENS : end], adapter)).encode()).digest()
        hashes.append(parent)
    lora = None if adapter is None else SimpleNamespace(adapter_id=7, name=adapter)
    return SimpleNamespace(block_hashes=hashes, all_token_ids=list(tokens), lora_request=lora)


def _keys(tokens):
    """Tender's keys of both groups, whose chunks have 8 tokens."""
    chunks = [repr(tokens[:end]).encode() for end in range(8, len(tokens) + 1, 8)]
    return [[b"full" + chunk for chunk in chunks], [b"window" + chunk for chunk in chunks]]


class Router:
    """Believes every event."""

    def __init__(self):
        self.blocks = set()
        self.parents = {}

    def hear(self, told):
        after = self._after(told)
        for event in told:
            parent = None
            if isinstance(event, BlockStored):
                parent = event.parent_block_hash
            for block_hash in event.block_hashes:
                name = (event.group_idx, block_hash)
                if isinstance(event, BlockStored):
                    assert name not in self.blocks, "told twice"
                    before = (event.group_idx, parent)
                    assert before in self.blocks or before not in after, "its parent is told after it"
                    self.blocks.add(name)
                    self.parents[name] = before
                    parent = block_hash
                else:
                    self.blocks.remove(name)
                    children = {child for child in self.blocks - after if self.parents[child] == name}
                    assert not children, "its children are taken back after it"
        assert self.blocks == after
        # As it goes over the wire.
        KVEventBatch(ts=0.0, events=list(told))

    def _after(self, told):
        """What is there when all of it was heard."""
        blocks = set(self.blocks)
        for event in told:
            names = {(event.group_idx, block_hash) for block_hash in event.block_hashes}
            blocks = blocks | names if isinstance(event, BlockStored) else blocks - names
        return blocks


def test_a_chunk_is_told_when_the_daemon_has_it_and_it_is_known_what_it_is():
    tokens = list(range(20))
    request, keys = _request(tokens), _keys(tokens)
    told = _events()
    told.describe(request, keys)
    assert told.take(False, []) == [], "what is not stored is not told"
    (stored,) = told.take(False, [(0, keys[0][1], _FULL)])
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == [maybe_convert_block_hash(name) for name in request.block_hashes[2:4]]
    assert stored.parent_block_hash == maybe_convert_block_hash(request.block_hashes[1])
    assert (stored.token_ids, stored.block_size) == (tokens[8:16], 4)
    assert (stored.medium, stored.locality, stored.group_idx) == ("CPU", "LOCAL", 1)
    assert (stored.lora_id, stored.lora_name) == (None, None)
    assert stored.kv_cache_spec_kind == "full_attention"
    assert told.take(False, [(0, keys[0][1], _FULL)]) == [], "once"
    (window,) = told.take(False, [(1, keys[1][0], 1)])
    # The hash of a block of 8 tokens is made of two of 4.
    assert len(window.block_hashes) == 1 and window.parent_block_hash is None
    assert (window.group_idx, window.block_size, window.kv_cache_spec_sliding_window) == (0, 8, 16)
    (removed,) = told.take(False, [(0, keys[0][1], None)])
    assert isinstance(removed, BlockRemoved)
    assert (removed.block_hashes, removed.group_idx, removed.medium) == (stored.block_hashes[::-1], 1, "CPU")


def test_parents_are_told_before_their_children_and_taken_back_after_them():
    tokens = list(range(40))
    request, keys = _request(tokens), _keys(tokens)
    told = _events()
    told.describe(request, keys)
    chunks = [(0, key, _FULL) for key in keys[0]]
    random.Random(5).shuffle(chunks)
    stored = told.take(False, chunks)
    blocks = [maybe_convert_block_hash(name) for name in request.block_hashes]
    assert [name for event in stored for name in event.block_hashes] == blocks
    assert [event.parent_block_hash for event in stored] == [None, *blocks[1:-1:2]]
    removed = told.take(True, [])
    assert [name for event in removed for name in event.block_hashes] == blocks[::-1]


def test_what_another_engine_stored_is_told_once_a_request_says_what_it_is():
    tokens = list(range(8))
    told = _events(local=False)
    assert told.take(False, [(0, _keys(tokens)[0][0], _FULL)]) == []
    told.describe(_request(tokens), _keys(tokens))
    (stored,) = told.take(False, [])
    assert stored.token_ids == tokens and stored.locality == "REMOTE"


def test_blocks_that_are_not_covered_are_not_told_and_those_that_come_later_are():
    tokens = list(range(8))
    request, keys = _request(tokens), _keys(tokens)
    told = _events()
    told.describe(request, keys)
    (stored,) = told.take(False, [(0, keys[0][0], 0b10)])
    assert stored.block_hashes == [maybe_convert_block_hash(request.block_hashes[1])]
    assert stored.token_ids == tokens[4:] and stored.parent_block_hash is not None
    (grown,) = told.take(False, [(0, keys[0][0], 0b11)])
    assert grown.block_hashes == [maybe_convert_block_hash(request.block_hashes[0])]
    (removed,) = told.take(False, [(0, keys[0][0], None)])
    assert len(removed.block_hashes) == 2


def test_adapters_of_one_content_and_two_names_are_told_by_both_names():
    tokens = list(range(8))
    keys, told = _keys(tokens), _events()
    told.describe(_request(tokens, "one"), keys)
    told.take(False, [(0, keys[0][0], _FULL)])
    told.describe(_request(tokens, "two"), keys)
    (second,) = told.take(False, [])
    assert (second.lora_name, second.lora_id) == ("two", 7)
    assert len(told.take(False, [(0, keys[0][0], None)])) == 2


def test_a_router_knows_what_the_daemon_holds_after_any_history(monkeypatch):
    monkeypatch.setattr(events, "_DESCRIBED_TOKENS", 30 * 8)
    rng = random.Random(3)
    told, router = _events(), Router()
    prompts = [[rng.randrange(2) for _ in range(rng.choice((8, 16, 29)))] for _ in range(12)]
    held, described = {}, {}
    for _ in range(800):
        forget, changes = rng.random() < 0.02, {}
        if forget:
            held.clear()
        for _ in range(rng.randrange(4)):
            group = rng.randrange(2)
            keys = _keys(rng.choice(prompts))[group]
            key, full = (group, rng.choice(keys)), _FULL if group == 0 else 1
            coverage = None if rng.random() < 0.4 else rng.choice((1, full))
            changes[key] = coverage
            if coverage is None:
                held.pop(key, None)
            else:
                held[key] = coverage
        if rng.random() < 0.5:
            tokens = rng.choice(prompts)
            told.describe(_request(tokens), _keys(tokens))
            for group, keys in enumerate(_keys(tokens)):
                for index, key in enumerate(keys):
                    described[group, key] = (tokens, index)
        router.hear(told.take(forget, [(group, key, coverage) for (group, key), coverage in changes.items()]))
        expected = set()
        for (group, key), coverage in held.items():
            if (group, key) in told._announced:
                tokens, index = described[group, key]
                hashes = _request(tokens).block_hashes[2 * index : 2 * index + 2]
                names = hashes if group == 0 else [b"".join(hashes)]
                expected |= {
                    (1 - group, maybe_convert_block_hash(name)) for at, name in enumerate(names) if coverage >> at & 1
                }
        assert router.blocks == expected
        tokens = [len(it.token_ids) for names in told._described.values() for it in names.values()]
        assert sum(tokens) == told._described_tokens <= 30 * 8
        fresh = {key for key in held if key in told._described and told._described[key]}
        assert fresh <= told._announced.keys(), "what is known and there is told"
        assert told._announced.keys() <= held.keys(), "what is not there is not told"
    told.describe(None, [[b"x"]])
    router.hear(told.take(False, []))
    assert router.blocks == set(), "after a fault, what was told is taken back"
    assert told.take(False, [(0, b"x", 1)]) == []


def test_an_engine_without_kv_events_tells_none():
    config = SimpleNamespace(kv_events_config=None)
    assert not events.wanted(config)
    config.kv_events_config = SimpleNamespace(enable_kv_cache_events=False)
    assert not events.wanted(config)
    config.kv_events_config.enable_kv_cache_events = True
    assert events.wanted(config)


@pytest.mark.parametrize(
    ("coverage", "runs"), [(0, []), (0b1, [(0, 1)]), (0b1011, [(0, 2), (3, 4)]), (0b1111, [(0, 4)])]
)
def test_runs_are_the_covered_blocks(coverage, runs):
    assert list(events._runs(coverage, 4)) == runs
