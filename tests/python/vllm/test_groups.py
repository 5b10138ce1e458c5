"""Which of the engine's layer groups are cached, and as what; no engine is started."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    HiSparseResidentSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from tender_kv.vllm import kinds, namespace
from tender_kv.vllm.groups import cached_groups
from tender_kv.vllm.kinds import Unsupported, in_words, load_fails_as_a_whole

HEADS = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
LATENT = {**HEADS, "num_kv_heads": 1, "head_size": 576}
FULL = FullAttentionSpec(**HEADS)
SLIDING = SlidingWindowSpec(**HEADS, sliding_window=128)
LOCAL = ChunkedLocalAttentionSpec(**HEADS, attention_chunk_size=192)
MLA = MLAAttentionSpec(**LATENT)
STATE = MambaSpec(
    block_size=528, shapes=((3, 288), (8, 32, 16)), dtypes=(torch.bfloat16, torch.float32), mamba_cache_mode="align"
)


def configuration(method=None, drafts=1, modules=1, **parallel):
    ranks = {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        **parallel,
    }
    speculation = method and SimpleNamespace(
        method=method,
        num_speculative_tokens=drafts,
        draft_model_config=SimpleNamespace(hf_config=SimpleNamespace(num_nextn_predict_layers=modules)),
        use_multi_module_mtp=lambda: method == "mtp" and min(modules, drafts) > 1,
    )
    return SimpleNamespace(parallel_config=SimpleNamespace(**ranks), speculative_config=speculation)


def cache(*specs, **details):
    groups = [
        spec if isinstance(spec, KVCacheGroupSpec) else KVCacheGroupSpec([f"layer{index}"], spec)
        for index, spec in enumerate(specs)
    ]
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups, **details)


def found(*specs, config=None):
    return cached_groups(config or configuration(), cache(*specs))


def test_every_kind_is_known():
    groups = found(FULL, SLIDING, LOCAL, STATE, MLA)
    assert [(group.kind, group.tokens_per_block, group.window_tokens) for group in groups] == [
        (kinds.FULL_ATTENTION, 16, 0),
        (kinds.SLIDING_WINDOW, 16, 128),
        (kinds.CHUNKED_LOCAL, 16, 192),
        (kinds.RECURRENT, 528, 0),
        (kinds.MLA_LATENT, 16, 0),
    ]
    assert in_words(groups).startswith("full_attention: 1 layers in blocks of 16, sliding_window of 128: 1 layers")


def test_a_window_is_as_long_as_the_engine_keeps_it():
    (group,) = found(replace(SLIDING, extra_retained_tokens=3))
    assert group.window_tokens == 131


def test_a_latent_of_a_window_is_a_window():
    (group,) = found(SlidingWindowMLASpec(**LATENT, sliding_window=128))
    assert (group.kind, group.window_tokens) == (kinds.SLIDING_WINDOW, 128)
    assert kinds.is_latent(group.layers["layer0"])
    assert not kinds.is_latent(FULL)


def test_layers_of_one_group_keep_their_own_descriptions():
    index_keys = replace(MLA, head_size=132)
    both = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": MLA, "a.indexer": index_keys})
    (group,) = found(KVCacheGroupSpec(["a", "a.indexer"], both))
    assert group.kind == kinds.MLA_LATENT
    assert group.layers == {"a": MLA, "a.indexer": index_keys}


@pytest.mark.parametrize(
    ("specs", "whole"), [((FULL,), False), ((MLA,), False), ((SLIDING,), True), ((STATE,), True), ((FULL, FULL), True)]
)
def test_only_full_attention_alone_goes_on_from_the_middle_of_a_load(specs, whole):
    assert load_fails_as_a_whole(found(*specs)) is whole


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param(replace(STATE, mamba_cache_mode="none"), "--mamba-cache-mode align", id="states-of-no-boundary"),
        pytest.param(replace(STATE, mamba_cache_mode="all"), "--mamba-cache-mode align", id="states-of-all-tokens"),
        pytest.param(replace(FULL, non_causal=True), "sees later tokens", id="not-causal"),
        pytest.param(replace(FULL, kv_quant_mode=KVQuantMode.NVFP4), "NVFP4", id="quantisation"),
        pytest.param(RSWASpec(**HEADS, rswa_window=64), "RSWASpec", id="window-with-a-gap"),
        pytest.param(SinkFullAttentionSpec(**HEADS, sink_len=4), "SinkFullAttentionSpec", id="sinks"),
        pytest.param(HiddenStateCacheSpec(**LATENT), "HiddenStateCacheSpec", id="hidden-states"),
        pytest.param(CrossAttentionSpec(**HEADS), "CrossAttentionSpec", id="cross"),
        pytest.param(EncoderOnlyAttentionSpec(**HEADS), "EncoderOnlyAttentionSpec", id="encoder"),
        pytest.param(CircularBufferSpec(**HEADS), "CircularBufferSpec", id="ring"),
        pytest.param(HiSparseResidentSpec(block_size=16, page_size=4096), "HiSparseResidentSpec", id="resident"),
        pytest.param(
            SlidingWindowMLASpec(**LATENT, sliding_window=128, bounded_replay=True), "cannot be cached", id="replayed"
        ),
        pytest.param(KVCacheGroupSpec(["l"], FULL, host_resident=True), "kept elsewhere", id="on-the-host"),
        pytest.param(KVCacheGroupSpec(["l"], FULL, enable_kv_transfer=False), "kept elsewhere", id="a-replica"),
    ],
)
def test_one_group_that_cannot_be_kept_refuses_the_model(spec, words):
    with pytest.raises(Unsupported, match=words):
        found(FULL, spec)


def test_a_model_without_a_cache_is_refused():
    with pytest.raises(Unsupported, match="no KV cache"):
        found()


@pytest.mark.parametrize("axis", ["pipeline_parallel", "decode_context_parallel", "prefill_context_parallel"])
def test_ranks_that_do_not_split_heads_are_refused(axis):
    with pytest.raises(Unsupported, match=axis.replace("_", " ").replace(" parallel", " parallelism")):
        found(FULL, config=configuration(**{f"{axis}_size": 2}))


def lookaheads(config, *specs):
    return [group.lookahead_tokens for group in found(*specs, config=config)]


def test_marked_draft_layers_look_ahead_and_the_others_do_not():
    draft = KVCacheGroupSpec(["draft"], FULL, is_eagle_group=True)
    assert lookaheads(configuration("eagle", drafts=3), FULL, SLIDING, draft) == [0, 0, 1]


def test_where_no_draft_layer_is_marked_every_attention_group_may_have_one():
    assert lookaheads(configuration("eagle3"), FULL, SLIDING, STATE) == [1, 1, 0]


@pytest.mark.parametrize(("modules", "drafts", "lookahead"), [(1, 3, 1), (3, 2, 2), (2, 4, 2)])
def test_chained_draft_modules_look_as_far_ahead_as_there_are(modules, drafts, lookahead):
    assert lookaheads(configuration("mtp", drafts, modules), FULL) == [lookahead]


@pytest.mark.parametrize("method", ["ngram", "suffix", "medusa"])
def test_drafts_without_a_cache_change_nothing(method):
    assert lookaheads(configuration(method), FULL) == [0]


@pytest.mark.parametrize("method", ["dflash", "dspark", "extract_hidden_states", "custom_class"])
def test_draft_layers_that_are_not_understood_are_refused(method):
    with pytest.raises(Unsupported, match=method):
        lookaheads(configuration(method), FULL)


def strings(*specs, cache_dtype="auto"):
    groups = found(*specs)
    by_layer = namespace._by_layer  # the one place where layers' values become strings
    return by_layer(groups, lambda spec: namespace._stored_as(cache_dtype, spec)), by_layer(
        groups, namespace._quantisation
    )


def test_values_are_told_once_where_they_are_the_same_and_by_group_where_not():
    assert strings(FULL, SLIDING) == ("bfloat16", "none")
    fp8 = replace(FULL, dtype=torch.uint8, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR)
    assert strings(fp8, cache_dtype="fp8") == ("fp8 as uint8", "fp8_per_tensor")
    assert strings(fp8, SLIDING, cache_dtype="fp8") == ("0: fp8 as uint8; 1: bfloat16", "0: fp8_per_tensor; 1: none")
    assert strings(FULL, STATE)[0] == "0: bfloat16; 1: mamba2 bfloat16[3,288] float32[8,32,16]"


def test_groups_that_mix_values_are_told_by_which_layer_has_which():
    def mixed(*dtypes):
        layers = {f"l{index}": replace(FULL, dtype=dtype) for index, dtype in enumerate(dtypes)}
        return strings(KVCacheGroupSpec(list(layers), UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=layers)))[0]

    half, single = torch.bfloat16, torch.float32
    assert mixed(half, half) == "bfloat16"
    assert mixed(half, single, half).startswith("bfloat16 and float32 (")
    assert mixed(half, single, half) != mixed(half, half, single)
