"""What Tender holds of this engine's prompts, as vLLM's KV events.

What is there and what is gone is the daemon's word: its stream says which chunks lookups find. What a chunk is to a
router (the engine's own block hashes, tokens, adapter) is known from requests of this engine. An event is told where
both are known, so nothing is announced that failed to be stored, and what was announced is taken back when it goes.

vLLM's `AllBlocksCleared` is never told: to a router it means the GPU's blocks too. A reset of Tender takes back each
chunk.

Routers refuse a block whose parent they do not know. So what is told at one time is in the order of its place in the
prompt: parents before children, and what is taken back the other way round.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored, KVCacheEvent
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash, resolve_block_hashes
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

from tender_kv.vllm.kinds import Group

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = init_logger("vllm.tender_kv.events")

# Tokens in the chunks of which it is known what they are to a router. With the hashes of blocks of 16 tokens they take
# some 80 MB in chunks of 512 tokens, 140 MB in chunks of 64.
_DESCRIBED_TOKENS = 8_000_000

_Key = tuple[int, bytes]
"""Tender's group and chain hash of a chunk."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """One group's chunks."""

    group_idx: int
    tokens_per_block: int
    blocks_per_chunk: int
    hashes_per_chunk: int
    spec_kind: str
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class _Described:
    """What a chunk is to a router. Equal bytes have several names where adapters differ in name only."""

    shape: _Shape
    first_block: int
    """Its place in the prompt, in blocks of its group."""
    block_hashes: tuple[Any, ...]
    parent: Any | None
    token_ids: array[int]
    lora_id: int | None
    lora_name: str | None


_Placed = tuple[int, KVCacheEvent]
"""An event and its place among those of one time, least first: where a run begins that came, and below zero where one
ended that is gone."""


def wanted(config: VllmConfig) -> bool:
    """Whether the engine tells KV events."""
    events = getattr(config, "kv_events_config", None)
    return events is not None and events.enable_kv_cache_events


class KvEvents:
    """The scheduler's. Nothing here raises: after a fault everything announced is taken back, and no more is told."""

    def __init__(self, groups: Sequence[Group], chunk_blocks: Sequence[int], cache: KVCacheConfig, local: bool):
        self._tokens_per_hash = cache.hash_block_size or min(group.tokens_per_block for group in groups)
        self._shapes = [self._shape(group, blocks, cache) for group, blocks in zip(groups, chunk_blocks, strict=True)]
        self._locality = "LOCAL" if local else "REMOTE"
        self._described: OrderedDict[_Key, dict[Any, _Described]] = OrderedDict()
        self._described_tokens = 0
        self._resident: dict[_Key, int] = {}
        self._announced: dict[_Key, dict[Any, tuple[_Described, int]]] = {}
        # Chunks that part in their middle have blocks in common: such a block is told once, and gone with the last.
        self._holders: dict[tuple[int, Any], int] = {}
        self._to_tell: set[_Key] = set()
        self._off = False

    def _shape(self, group: Group, blocks_per_chunk: int, cache: KVCacheConfig) -> _Shape | None:
        if group.tokens_per_block % self._tokens_per_hash:
            logger.warning("No KV events for blocks of %d tokens: vLLM has no hashes of them", group.tokens_per_block)
            return None
        spec = cache.kv_cache_groups[group.engine_id].kv_cache_spec
        return _Shape(
            group_idx=group.engine_id,
            tokens_per_block=group.tokens_per_block,
            blocks_per_chunk=blocks_per_chunk,
            hashes_per_chunk=blocks_per_chunk * group.tokens_per_block // self._tokens_per_hash,
            spec_kind=get_kv_cache_spec_kind(spec).value,
            sliding_window=get_kv_cache_spec_sliding_window(spec),
        )

    def describe(self, request: Request, keys: Sequence[Sequence[bytes]]) -> None:
        """The chunks of a request, by Tender's group, in the order of its tokens."""
        if self._off:
            return
        try:
            for group, (shape, hashes) in enumerate(zip(self._shapes, keys, strict=False)):
                if shape is not None:
                    for index, chunk in enumerate(hashes):
                        self._describe(request, shape, index, (group, chunk))
        except Exception:
            self._fault()

    def _describe(self, request: Request, shape: _Shape, index: int, key: _Key) -> None:
        first = index * shape.hashes_per_chunk
        end = first + shape.hashes_per_chunk
        if end > len(request.block_hashes):
            return
        names = self._described.setdefault(key, {})
        self._described.move_to_end(key)
        name = request.block_hashes[end - 1]
        if name in names:
            return
        tokens = shape.blocks_per_chunk * shape.tokens_per_block
        adapter = request.lora_request
        names[name] = _Described(
            shape=shape,
            first_block=index * shape.blocks_per_chunk,
            block_hashes=tuple(
                resolve_block_hashes(request.block_hashes[first:end], self._tokens_per_hash, shape.tokens_per_block)
            ),
            parent=request.block_hashes[first - 1] if first else None,
            token_ids=array("I", request.all_token_ids[index * tokens : (index + 1) * tokens]),
            lora_id=None if adapter is None else adapter.adapter_id,
            lora_name=None if adapter is None else adapter.name,
        )
        self._described_tokens += tokens
        if key in self._resident:
            self._to_tell.add(key)
        while self._described_tokens > _DESCRIBED_TOKENS:
            _, forgotten = self._described.popitem(last=False)
            self._described_tokens -= sum(len(described.token_ids) for described in forgotten.values())

    def take(self, forget: bool, changes: Iterable[tuple[int, bytes, int | None]]) -> list[KVCacheEvent]:
        """The daemon's changes as events: first everything is forgotten, if so; a coverage of None is a chunk that is
        gone."""
        events: list[_Placed] = []
        try:
            if self._off:
                return self.withdraw()
            if forget:
                events += self._take_back_all()
                self._resident.clear()
                self._to_tell.clear()
            for group, chunk, coverage in changes:
                key = (group, chunk)
                if coverage is None:
                    self._resident.pop(key, None)
                    events += self._take_back(key)
                else:
                    if self._resident.get(key, 0) & ~coverage:
                        # It went and came back with less since the last step.
                        events += self._take_back(key)
                    self._resident[key] = coverage
                    self._to_tell.add(key)
            to_tell, self._to_tell = self._to_tell, set()
            for key in to_tell:
                if key in self._resident:
                    events += self._announce(key, self._resident[key])
        except Exception:
            self._fault()
        return _in_order(events)

    def _announce(self, key: _Key, coverage: int) -> list[_Placed]:
        announced = self._announced.get(key, {})
        events: list[_Placed] = []
        # What was announced is known for as long as it is there.
        names = {name: described for name, (described, _) in announced.items()}
        names.update(self._described.get(key, {}))
        for name, described in names.items():
            _, told = announced.get(name, (described, 0))
            fresh = self._hold(described, coverage & ~told)
            for first, end in _runs(fresh, described.shape.blocks_per_chunk):
                events.append((described.first_block + first, self._stored(described, first, end)))
            if coverage & ~told:
                announced[name] = (described, coverage | told)
        if announced:
            self._announced[key] = announced
        return events

    def _hold(self, described: _Described, coverage: int) -> int:
        """Those of the covered blocks that no other chunk has told."""
        fresh = 0
        for block in _covered(coverage, described.shape.blocks_per_chunk):
            name = (described.shape.group_idx, described.block_hashes[block])
            if not self._holders.get(name):
                fresh |= 1 << block
            self._holders[name] = self._holders.get(name, 0) + 1
        return fresh

    def _release(self, described: _Described, coverage: int) -> int:
        """Those of the covered blocks that no other chunk has."""
        gone = 0
        for block in _covered(coverage, described.shape.blocks_per_chunk):
            name = (described.shape.group_idx, described.block_hashes[block])
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]
                gone |= 1 << block
        return gone

    def _stored(self, described: _Described, first: int, end: int) -> BlockStored:
        shape, hashes = described.shape, described.block_hashes
        parent = hashes[first - 1] if first else described.parent
        block = shape.tokens_per_block
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(block_hash) for block_hash in hashes[first:end]],
            parent_block_hash=None if parent is None else maybe_convert_block_hash(parent),
            token_ids=described.token_ids[first * block : end * block].tolist(),
            block_size=block,
            lora_id=described.lora_id,
            medium=MEDIUM_CPU,
            lora_name=described.lora_name,
            group_idx=shape.group_idx,
            kv_cache_spec_kind=shape.spec_kind,
            kv_cache_spec_sliding_window=shape.sliding_window,
            locality=self._locality,
        )

    def _take_back(self, key: _Key) -> Iterator[_Placed]:
        for described, told in self._announced.pop(key, {}).values():
            gone = self._release(described, told)
            for first, end in _runs(gone, described.shape.blocks_per_chunk):
                removed = BlockRemoved(
                    block_hashes=[maybe_convert_block_hash(it) for it in reversed(described.block_hashes[first:end])],
                    medium=MEDIUM_CPU,
                    group_idx=described.shape.group_idx,
                    locality=self._locality,
                )
                yield -(described.first_block + end), removed

    def withdraw(self) -> list[KVCacheEvent]:
        """Takes back all that was announced, for good: this engine no longer loads anything."""
        self._off = True
        return _in_order(self._take_back_all())

    def _take_back_all(self) -> list[_Placed]:
        return [event for key in list(self._announced) for event in self._take_back(key)]

    def _fault(self) -> None:
        self._off = True
        logger.exception("Tender tells no more KV events; what it told is taken back")


def _covered(coverage: int, blocks: int) -> Iterable[int]:
    return (block for block in range(blocks) if coverage >> block & 1)


def _in_order(events: Iterable[_Placed]) -> list[KVCacheEvent]:
    return [event for _, event in sorted(events, key=itemgetter(0))]


def _runs(coverage: int, blocks: int) -> Iterable[tuple[int, int]]:
    """The covered blocks, as ranges."""
    first = None
    for block in range(blocks + 1):
        covered = block < blocks and coverage >> block & 1
        if covered and first is None:
            first = block
        elif not covered and first is not None:
            yield first, block
            first = None
