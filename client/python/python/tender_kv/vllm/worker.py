"""A worker's half: describes vLLM's tensors, and hands the scheduler's plans to the native worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheSpecKind, KVQuantMode, get_kv_cache_spec_kind, iter_layer_specs

from tender_kv import _native
from tender_kv.vllm import namespace, tensors
from tender_kv.vllm.config import Settings
from tender_kv.vllm.embedded import NoDaemon
from tender_kv.vllm.metadata import TenderHandshake, TenderMetadata

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

logger = init_logger("vllm.tender_kv.worker")

_QUANT_MODES = (KVQuantMode.NONE, KVQuantMode.FP8_PER_TENSOR)
# How long the end of an engine waits for its last stores.
_LAST_STORES_LIMIT_S = 3.0
# Kinds of speculation whose draft model has no KV cache.
_DRAFTS_WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix")


def supported_group(config: VllmConfig, cache: KVCacheConfig) -> KVCacheGroupSpec:
    """The model's one full-attention group. Raises Unsupported."""
    parallel, speculative = config.parallel_config, config.speculative_config
    for what, ranks in (
        ("pipeline parallelism", parallel.pipeline_parallel_size),
        ("decode context parallelism", parallel.decode_context_parallel_size),
        ("prefill context parallelism", parallel.prefill_context_parallel_size),
    ):
        if ranks > 1:
            raise tensors.Unsupported(f"{what} is not supported yet")
    if speculative is not None and speculative.method not in _DRAFTS_WITHOUT_CACHE:
        raise tensors.Unsupported(f"the draft model of {speculative.method} speculation is not supported yet")
    kinds = [get_kv_cache_spec_kind(group.kv_cache_spec).value for group in cache.kv_cache_groups]
    if kinds != [KVCacheSpecKind.FULL_ATTENTION.value]:
        found = ", ".join(kinds) or "none"
        raise tensors.Unsupported(f"only models with one full-attention KV cache group are supported yet, not {found}")
    (group,) = cache.kv_cache_groups
    if group.is_eagle_group or group.host_resident or not group.enable_kv_transfer:
        raise tensors.Unsupported(
            "a KV cache of draft layers, or one that the engine keeps elsewhere, is not supported"
        )
    for spec in iter_layer_specs(group.kv_cache_spec):
        if spec.non_causal:
            raise tensors.Unsupported("a layer sees later tokens too, so a prefix does not decide its KV cache")
        if spec.kv_quant_mode not in _QUANT_MODES:
            raise tensors.Unsupported(f"the KV cache quantisation {spec.kv_quant_mode.name} is not supported yet")
    return group


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
        self._handshake = TenderHandshake(refusal="the engine registered no KV cache")
        self._begun: TenderMetadata | None = None
        self._waiting: dict[str, list[int]] = {}
        self._over: set[str] = set()
        self._failed: set[int] = set()

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The engine's tensors. What cannot be cached is said in one warning, and the engine runs without."""
        if self._native is not None:
            self._native.shutdown()
            self._native = None
        try:
            self._register(kv_caches)
        except (tensors.Unsupported, namespace.Undeterminable, NoDaemon, OSError, _native.TenderError) as no:
            logger.warning("Tender is off: %s", no)
            self._handshake = TenderHandshake(refusal=str(no))

    def _register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        group = supported_group(self._config, self._cache)
        described = tensors.describe(kv_caches, group.layer_names, self._cache.num_blocks)
        layout = _native.Layout(described, self._cache.num_blocks, list(kv_caches.values()))
        naming = namespace.name(self._config, group.kv_cache_spec)
        parallel = self._config.parallel_config
        identity = Identity(
            naming,
            page_format=layout.page_format,
            layout_fingerprint=layout.fingerprint,
            tensor_parallel=parallel.tensor_parallel_size,
            tokens_per_block=group.kv_cache_spec.block_size,
            blocks_per_chunk=self._settings.chunk_blocks(group.kv_cache_spec.block_size),
            # All ranks have equal shares of a full-attention layer; a rank that has not is found by the scheduler,
            # whose workers then describe different things.
            part_block_bytes=[layout.block_bytes(0)] * parallel.tensor_parallel_size,
        )
        descriptor, digest = _native.describe(identity)
        part = parallel.rank % parallel.tensor_parallel_size
        self._native = _native.Worker(
            self._settings.client_json(self._find_daemon(), self._name), descriptor, part, layout
        )
        self._handshake = TenderHandshake(descriptor=descriptor)
        logger.info(
            "Tender caches %d layers in chunks of %d x %d tokens, namespace %s",
            len(described),
            identity.blocks_per_chunk,
            identity.tokens_per_block,
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
        self._native.begin_step(metadata.plan)
        if metadata.loads:
            # A load that the planner declined is in no plan, and nobody would report it.
            self._fail(metadata.loads.keys() - set(_native.plan_requests(metadata.plan)))

    def end(self, metadata: TenderMetadata) -> None:
        """After the forward pass."""
        if self._native is not None and metadata.plan:
            self._native.end_step(metadata.plan)

    def poll(self) -> set[str]:
        """Requests whose loads are over. Blocks that failed are told by `take_failed` from now on."""
        if self._native is not None and self._waiting:
            for request_id, failed in self._native.poll():
                if self._waiting.pop(request_id, None) is not None:
                    self._over.add(request_id)
                    self._failed.update(failed)
        over, self._over = self._over, set()
        return over

    def take_failed(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def adopt(self, metadata: TenderMetadata) -> None:
        """Takes over what a step's loads are waited for, without beginning them."""
        if metadata is not self._begun:
            self._begun = metadata
            self._waiting.update(metadata.loads)

    def give_up(self) -> None:
        """After a fault: every load that is waited for has failed, once no thread of ours can still write."""
        self.shutdown()
        self._fail(self._waiting.keys())

    def _fail(self, request_ids) -> None:
        for request_id in list(request_ids):
            blocks = self._waiting.pop(request_id, None)
            if blocks is not None:
                self._over.add(request_id)
                self._failed.update(blocks)

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


class Identity:
    """A namespace's identity with the attributes that the native `describe` reads."""

    def __init__(self, naming: namespace.Naming, **rest: Any):
        self.model, self.weights = naming.model, naming.weights
        self.kv_dtype, self.quantisation = naming.kv_dtype, naming.quantisation
        self.page_format = rest["page_format"]
        self.layout_fingerprint = rest["layout_fingerprint"]
        self.tensor_parallel = rest["tensor_parallel"]
        self.tokens_per_block = rest["tokens_per_block"]
        self.blocks_per_chunk = rest["blocks_per_chunk"]
        self.part_block_bytes = rest["part_block_bytes"]
