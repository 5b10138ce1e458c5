"""A worker's half: describes vLLM's tensors, and hands the scheduler's plans to the native worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

from tender_kv import _native
from tender_kv.vllm import devices, namespace, parts, tensors
from tender_kv.vllm.config import Settings
from tender_kv.vllm.embedded import NoDaemon
from tender_kv.vllm.groups import cached_groups
from tender_kv.vllm.kinds import Unsupported, in_words, load_fails_as_a_whole
from tender_kv.vllm.metadata import TenderHandshake, TenderMetadata

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = init_logger("vllm.tender_kv.worker")

# How long the end of an engine waits for its last stores.
_LAST_STORES_LIMIT_S = 3.0


class WorkerSide:
    """One rank."""

    def __init__(
        self,
        config: VllmConfig,
        cache: KVCacheConfig,
        settings: Settings,
        find_daemon: Callable[[], str],
        name: str,
    ):
        self._config, self._cache, self._settings = config, cache, settings
        # Called when there is something to cache: a private daemon ends if nobody comes, and between this and the
        # registration the engine may take minutes to allocate its cache.
        self._find_daemon, self._name = find_daemon, name
        self._native: _native.Worker | None = None
        self._memory = devices.HOST
        self._handshake = TenderHandshake(refusal="the engine registered no KV cache")
        self._begun: TenderMetadata | None = None
        self._waiting: dict[str, list[int]] = {}
        self._over: set[str] = set()
        self._failed: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._fails_as_a_whole = True

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The engine's tensors. What cannot be cached is said in one warning, and the engine runs without."""
        if self._native is not None:
            self._native.shutdown()
            self._native = None
        try:
            self._register(kv_caches)
        except (Unsupported, namespace.Undeterminable, NoDaemon, OSError, _native.TenderError) as no:
            logger.warning("Tender is off: %s", no)
            self._handshake = TenderHandshake(refusal=str(no))

    def _register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        groups = cached_groups(self._config, self._cache)
        self._memory = devices.memory_of(kv_caches)
        described = tensors.describe(kv_caches, groups, self._cache.num_blocks)
        ranks = parts.of_rank(self._config, groups)
        try:
            layout = _native.Layout(described, self._cache.num_blocks, ranks.shards, list(kv_caches.values()))
        except _native.LayoutError as no:
            raise Unsupported(f"{no}{tensors.advice(described)}") from None
        chunk_blocks = self._settings.chunk_blocks((group.kind, group.tokens_per_block) for group in groups)
        identity = Identity(
            **asdict(namespace.name(self._config, groups)),
            page_format=layout.page_format,
            layout_fingerprint=layout.fingerprint,
            tensor_parallel=ranks.tensor_parallel,
            groups=[
                GroupIdentity(
                    kind=group.kind,
                    tokens_per_block=group.tokens_per_block,
                    blocks_per_chunk=chunk_blocks[index],
                    window_tokens=group.window_tokens,
                    lookahead_tokens=group.lookahead_tokens,
                    # All ranks have equal shares of a layer; a rank that has not is found by the scheduler, whose
                    # workers then describe different things.
                    part_block_bytes=layout.part_block_bytes(index),
                )
                for index, group in enumerate(groups)
            ],
        )
        descriptor, digest = _native.describe(identity)
        client = self._settings.client_json(self._find_daemon(), self._name)
        self._native = _native.Worker(client, descriptor, layout, self._memory.cuda_index)
        self._fails_as_a_whole = load_fails_as_a_whole(groups)
        self._handshake = TenderHandshake(descriptor=descriptor)
        logger.info(
            "Tender caches %s, %s blocks a chunk, in namespace %s",
            in_words(groups),
            "/".join(str(blocks) for blocks in chunk_blocks),
            digest[:16],
        )

    def handshake(self) -> TenderHandshake:
        return self._handshake

    def begin(self, metadata: TenderMetadata) -> None:
        """Before the forward pass, and before the engine zeroes or copies blocks for it: what became final by a
        request's end is gathered while its blocks are still as they were. Loads are begun as well; they are into
        blocks that this pass does not read."""
        if metadata is self._begun:
            return
        self.adopt(metadata)
        if self._native is None or not metadata.plan:
            self._fail(metadata.loads)
            return
        self._native.begin_step(metadata.plan, self._memory.stream())
        if metadata.loads:
            # A load that the planner declined is in no plan, and nobody would report it.
            self._fail(metadata.loads.keys() - set(_native.plan_requests(metadata.plan)))

    def end(self, metadata: TenderMetadata) -> None:
        """After the forward pass was begun on the engine's stream."""
        if self._native is not None and metadata.plan:
            self._native.end_step(metadata.plan, self._memory.stream())

    def poll(self) -> tuple[set[str], set[str]]:
        """Requests whose loads are over, and those of them that failed as a whole. Blocks of the other failures are
        told by `take_failed_blocks` from now on."""
        if self._native is not None and self._waiting:
            for request_id, blocks, failed in self._native.poll():
                if self._waiting.pop(request_id, None) is not None:
                    self._over.add(request_id)
                    self._note_failure(request_id, blocks, failed)
        over, self._over = self._over, set()
        failed, self._failed = self._failed, set()
        return over, failed

    def take_failed_blocks(self) -> set[int]:
        blocks, self._failed_blocks = self._failed_blocks, set()
        return blocks

    def _note_failure(self, request_id: str, blocks: Iterable[int], failed: bool) -> None:
        """The engine goes on from the first block that failed where every block stands for itself. Where none does, it
        computes the request from its start: block ids say nothing there, since groups have ids of one pool and an
        engine cannot go on from the middle of a window."""
        if not self._fails_as_a_whole:
            self._failed_blocks.update(blocks)
        elif failed or blocks:
            self._failed.add(request_id)

    def adopt(self, metadata: TenderMetadata) -> None:
        """Takes over what a step's loads are waited for, without beginning them."""
        if metadata is not self._begun:
            self._begun = metadata
            self._waiting.update(metadata.loads)

    def give_up(self) -> None:
        """After a fault: every load that is waited for has failed, once no thread of ours can still write."""
        self.shutdown()
        self._fail(self._waiting.keys())

    def _fail(self, request_ids: Iterable[str]) -> None:
        for request_id in list(request_ids):
            blocks = self._waiting.pop(request_id, None)
            if blocks is not None:
                self._over.add(request_id)
                self._note_failure(request_id, blocks, failed=True)

    def flush(self, limit_s: float) -> bool:
        return self._native is None or self._native.flush(limit_s)

    def counters(self) -> dict[str, Any]:
        return {} if self._native is None else json.loads(self._native.counters_json())

    def shutdown(self) -> None:
        """After it, nothing of ours touches the engine's memory."""
        if self._native is not None:
            self._native.shutdown()

    def finish_stores(self) -> None:
        """What was gathered last is worth a moment: the next engine will ask for it."""
        if not self.flush(_LAST_STORES_LIMIT_S):
            logger.info("Tender gave up the last stores after %.0f s", _LAST_STORES_LIMIT_S)


@dataclass(frozen=True)
class GroupIdentity:
    """One group of a namespace, as the native `describe` reads it."""

    kind: str
    tokens_per_block: int
    blocks_per_chunk: int
    window_tokens: int
    lookahead_tokens: int
    part_block_bytes: list[int]


@dataclass(frozen=True)
class Identity:
    """A namespace, as the native `describe` reads it."""

    model: str
    weights: str
    kv_dtype: str
    quantisation: str
    page_format: str
    layout_fingerprint: bytes
    tensor_parallel: int
    groups: list[GroupIdentity]
