"""Which engines can be cached now. Everything else runs without Tender, and the log says why."""

from __future__ import annotations

from typing import Any


def reason_against(vllm_config: Any, kv_cache_config: Any) -> str | None:
    """A sentence, or None if nothing speaks against it. Tensors are looked at later, by `layout`."""
    return _parallel(vllm_config.parallel_config) or _speculation(vllm_config) or _groups(kv_cache_config)


def _parallel(parallel: Any) -> str | None:
    for name in ("pipeline_parallel_size", "prefill_context_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            return f"{name} = {getattr(parallel, name)} is not supported yet."
    return None


def _speculation(vllm_config: Any) -> str | None:
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method in ("ngram", "ngram_gpu", "suffix"):
        return None
    # A draft model's KV of the last tokens is rewritten after verification.
    return f"speculative decoding with a draft model ({speculative.method}) is not supported yet."


def _groups(kv_cache_config: Any) -> str | None:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        return f"only models with one group of full-attention layers are supported yet, this one has {kinds or 'none'}."
    [group] = groups
    if group.is_eagle_group or group.host_resident or not group.enable_kv_transfer:
        return "the KV cache group has draft layers or is not transferable, which is not supported yet."
    for spec in layer_specs(group):
        if problem := _spec(spec):
            return problem
    return None


def layer_specs(group: Any) -> list[Any]:
    """The specs of a group's layers: usually one for all."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    spec = group.kv_cache_spec
    return list(spec.kv_cache_specs.values()) if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]


def _spec(spec: Any) -> str | None:
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpecKind, KVQuantMode, get_kv_cache_spec_kind

    if not isinstance(spec, FullAttentionSpec) or get_kv_cache_spec_kind(spec) != KVCacheSpecKind.FULL_ATTENTION:
        return f"only full attention is supported yet, this model has {type(spec).__name__} layers."
    if spec.non_causal:
        return "attention that looks ahead is not supported: later tokens change earlier KV."
    if spec.kv_quant_mode not in (KVQuantMode.NONE, KVQuantMode.FP8_PER_TENSOR):
        return f"the KV cache quantisation {spec.kv_quant_mode.name} is not supported yet."
    return None
