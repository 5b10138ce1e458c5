"""Tiny random models, made on the spot: no download, and greedy answers that vary from token to token.

With the usual small initial spread a random model repeats one token, and wrong KV bytes would go unnoticed; with
the spread used here they move log-probabilities by 1e-2 and more.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

VOCAB_TOKENS = 512
MAX_CONTEXT_TOKENS = 4096

# The part of a config that all kinds share. head_dim 32 is the smallest the engine's CPU attention takes.
_COMMON = {
    "vocab_size": VOCAB_TOKENS,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": MAX_CONTEXT_TOKENS,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# A window of four blocks and a bit: it never begins on a block.
_WINDOW_TOKENS = 100
_TWO_SLIDING_ONE_FULL = ["sliding_attention", "sliding_attention", "full_attention"] * 2
_TWO_LINEAR_ONE_FULL = ["linear_attention", "linear_attention", "full_attention"]

# What each kind is made from: classes of transformers, and what differs from the common part. The demo's model is large
# enough for computing to cost more than loading.
_KINDS = {
    "llama": ("Llama", {}),
    "llama-4-heads": ("Llama", {"num_key_value_heads": 4}),
    "llama-demo": (
        "Llama",
        {
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "head_dim": 64,
            "initializer_range": 0.07,
        },
    ),
    "qwen3": ("Qwen3", {}),
    "gemma3": (
        "Gemma3",
        {
            "num_hidden_layers": 6,
            "layer_types": _TWO_SLIDING_ONE_FULL,
            "sliding_window": 128,
            "query_pre_attn_scalar": 32,
        },
    ),
    # Head sizes differ between the kinds of layers, so the sizes of their blocks do.
    "gemma4": (
        "Gemma4",
        {
            "num_hidden_layers": 6,
            "layer_types": _TWO_SLIDING_ONE_FULL,
            "sliding_window": _WINDOW_TOKENS,
            "global_head_dim": 64,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCAB_TOKENS,
        },
    ),
    "mistral": ("Mistral", {"sliding_window": _WINDOW_TOKENS}),
    "gpt-oss": (
        "GptOss",
        {
            "num_hidden_layers": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": _WINDOW_TOKENS,
        },
    ),
    "llama4": (
        "Llama4",
        {
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 256,
            "num_local_experts": 2,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 192,
            "no_rope_layers": [1, 1, 0, 0],
        },
    ),
    "granite-hybrid": (
        "GraniteMoeHybrid",
        {
            "num_hidden_layers": 4,
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 256,
            "mamba_n_heads": 8,
            "mamba_d_state": 16,
            "mamba_d_head": 32,
            "mamba_chunk_size": 32,
            "attention_multiplier": 0.18,
        },
    ),
    "qwen3-next": (
        "Qwen3Next",
        {
            "layer_types": _TWO_LINEAR_ONE_FULL,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "head_dim": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 64,
            "first_k_dense_replace": 3,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
}


def model_dir(kind: str, cache: Path) -> Path:
    """Folder of the model of `kind`, made on first use. Its name holds a digest of what it is made from."""
    recipe = json.dumps([kind, _COMMON, _KINDS[kind]], sort_keys=True)
    return _made_once(cache, f"{kind}-{_digest(recipe)}", lambda folder: _save_model(kind, folder))


def adapter_dir(seed: int, cache: Path) -> Path:
    """Folder of a LoRA adapter for the llama model; two seeds give two adapters with visibly different answers."""
    recipe = json.dumps([seed, _COMMON], sort_keys=True)
    return _made_once(cache, f"lora-{seed}-{_digest(recipe)}", lambda folder: _save_adapter(seed, folder))


def _digest(recipe: str) -> str:
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def _made_once(cache: Path, name: str, make) -> Path:
    """Makes the folder beside its final place and renames it, so that nobody ever sees half a model."""
    final = cache / name
    if final.exists():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch) / name
        made.mkdir()
        make(made)
        try:
            os.rename(made, final)
        except OSError:
            if not final.exists():
                raise
    return final


def _save_model(kind: str, folder: Path) -> None:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    family, changes = _KINDS[kind]
    # Some families have a configuration for their text part alone.
    config_class = getattr(transformers, f"{family}TextConfig", None) or getattr(transformers, f"{family}Config")
    torch.manual_seed(2026)
    model = getattr(transformers, f"{family}ForCausalLM")(config_class(**{**_COMMON, **changes}))
    model.to(torch.float32).save_pretrained(folder)


def _save_adapter(seed: int, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    rank = 8
    generator = torch.Generator().manual_seed(seed)
    hidden = _COMMON["hidden_size"]
    outputs = {
        "q_proj": _COMMON["num_attention_heads"] * _COMMON["head_dim"],
        "k_proj": _COMMON["num_key_value_heads"] * _COMMON["head_dim"],
        "v_proj": _COMMON["num_key_value_heads"] * _COMMON["head_dim"],
    }
    tensors = {}
    for layer in range(_COMMON["num_hidden_layers"]):
        for projection, out in outputs.items():
            stem = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(rank, hidden, generator=generator) * 0.2
            tensors[f"{stem}.lora_B.weight"] = torch.randn(out, rank, generator=generator) * 0.2
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(outputs),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))
