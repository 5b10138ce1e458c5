"""Which layer groups of a model are cached, and as what. What is not understood is refused, for the whole model: an
engine that gets some layers back and others not would compute with bytes of another request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheGroupRole,
    KVCacheSpecKind,
    KVQuantMode,
    MambaSpec,
    RSWASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    get_kv_cache_spec_kind,
)

from tender_kv.vllm.kinds import (
    CHUNKED_LOCAL,
    FULL_ATTENTION,
    MLA_LATENT,
    RECURRENT,
    SLIDING_WINDOW,
    Group,
    Unsupported,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

_KINDS = {
    KVCacheSpecKind.FULL_ATTENTION: FULL_ATTENTION,
    KVCacheSpecKind.MLA_ATTENTION: MLA_LATENT,
    KVCacheSpecKind.SLIDING_WINDOW: SLIDING_WINDOW,
    # A latent of which only a window is kept: what a hit needs is the window's business, not the latent's.
    KVCacheSpecKind.SLIDING_WINDOW_MLA: SLIDING_WINDOW,
    KVCacheSpecKind.CHUNKED_LOCAL_ATTENTION: CHUNKED_LOCAL,
    KVCacheSpecKind.MAMBA: RECURRENT,
}
# Subclasses of specs that are cached, whose blocks mean something else.
_OTHER_SPECS = (RSWASpec, HiddenStateCacheSpec)
_QUANT_MODES = (
    KVQuantMode.NONE,
    KVQuantMode.FP8_PER_TENSOR,
    KVQuantMode.INT8_PER_TOKEN_HEAD,
    KVQuantMode.FP8_PER_TOKEN_HEAD,
    KVQuantMode.INT4_PER_TOKEN_HEAD,
)
# The one mode of recurrent layers in which the engine keeps states at block boundaries and says where they are.
_STATES_AT_BOUNDARIES = "align"
# Speculation by layers of a draft model that see each token together with the one after it.
_DRAFTS_BY_LAYERS = ("eagle", "eagle3", "mtp", "draft_model")
# Speculation without a KV cache of its own.
_DRAFTS_WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator")


def cached_groups(config: VllmConfig, cache: KVCacheConfig) -> list[Group]:
    """All groups of the model. Raises Unsupported if there is one that Tender cannot keep."""
    _check_parallel(config)
    lookahead = _lookahead_tokens(config)
    cacheable = set(cache.prefix_cacheable_group_ids)
    groups = cache.kv_cache_groups
    if not groups:
        raise Unsupported("the model has no KV cache")
    try:
        return [
            _group(index, group, index in cacheable, _group_lookahead(cache, group, lookahead))
            for index, group in enumerate(groups)
        ]
    except Unsupported as no:
        names = ", ".join(f"{len(group.layer_names)} x {type(_first_layer(group)).__name__}" for group in groups)
        raise Unsupported(f"{no} (the model's layers by group: {names})") from None


def _check_parallel(config: VllmConfig) -> None:
    parallel = config.parallel_config
    for what, ranks in (
        ("pipeline parallelism", parallel.pipeline_parallel_size),
        ("decode context parallelism", parallel.decode_context_parallel_size),
        ("prefill context parallelism", parallel.prefill_context_parallel_size),
    ):
        if ranks > 1:
            raise Unsupported(f"{what} is not supported")


def _lookahead_tokens(config: VllmConfig) -> int:
    """Tokens that draft layers see beyond a slot; 0 without draft layers."""
    speculation = config.speculative_config
    if speculation is None or speculation.method in _DRAFTS_WITHOUT_CACHE:
        return 0
    if speculation.method not in _DRAFTS_BY_LAYERS:
        raise Unsupported(f"the draft layers of {speculation.method} speculation are not supported")
    if not speculation.use_multi_module_mtp():
        return 1
    modules = getattr(speculation.draft_model_config.hf_config, "num_nextn_predict_layers", 1)
    return min(modules, speculation.num_speculative_tokens)


def _group_lookahead(cache: KVCacheConfig, spec: KVCacheGroupSpec, lookahead: int) -> int:
    """The engine marks the groups of draft layers where it can tell them; where it marks none, each may have some."""
    marked = any(group.is_eagle_group for group in cache.kv_cache_groups)
    if isinstance(_first_layer(spec), MambaSpec) or (marked and not spec.is_eagle_group):
        return 0
    return lookahead


def _group(index: int, group: KVCacheGroupSpec, cacheable: bool, lookahead: int) -> Group:
    layers = _layers(group)
    kind = _KINDS.get(get_kv_cache_spec_kind(group.kv_cache_spec))
    first = _first_layer(group)
    where = f"the KV cache group of layer {next(iter(layers), 'none')} ({type(first).__name__})"
    if kind is None or any(isinstance(spec, _OTHER_SPECS) for spec in layers.values()):
        raise Unsupported(f"{where} is of a kind that is not supported")
    if group.host_resident or not group.enable_kv_transfer or group.role is not KVCacheGroupRole.DEFAULT:
        raise Unsupported(f"{where} is kept elsewhere by the engine")
    if not cacheable:
        raise Unsupported(f"{where} cannot be cached by prefix")
    for name, spec in layers.items():
        _check_layer(name, spec)
    return Group(
        engine_id=index,
        kind=kind,
        tokens_per_block=group.kv_cache_spec.block_size,
        window_tokens=_window_tokens(first),
        lookahead_tokens=lookahead,
        layers=layers,
    )


def _layers(group: KVCacheGroupSpec) -> dict[str, KVCacheSpec]:
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return {name: spec.kv_cache_specs[name] for name in group.layer_names}
    return dict.fromkeys(group.layer_names, spec)


def _first_layer(group: KVCacheGroupSpec) -> KVCacheSpec:
    spec = group.kv_cache_spec
    return spec.first_spec if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def _check_layer(name: str, spec: Any) -> None:
    if isinstance(spec, MambaSpec):
        if spec.mamba_cache_mode != _STATES_AT_BOUNDARIES:
            raise Unsupported(
                f"layer {name} keeps its recurrent state in mode '{spec.mamba_cache_mode}'; start vLLM with "
                "--enable-prefix-caching --mamba-cache-mode align"
            )
        return
    if getattr(spec, "non_causal", False):
        raise Unsupported(f"layer {name} sees later tokens too, so a prefix does not decide its KV cache")
    if spec.kv_quant_mode not in _QUANT_MODES:
        raise Unsupported(
            f"layer {name} has the KV cache quantisation {spec.kv_quant_mode.name}, which is not supported"
        )


def _window_tokens(spec: KVCacheSpec) -> int:
    if isinstance(spec, SlidingWindowSpec):
        return spec.sliding_window + spec.extra_retained_tokens
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return spec.attention_chunk_size
    return 0
