"""Everything, beyond tokens and layout, that decides which bytes are right: model, weights, numbers' formats.

Two engines share only if all of this is equal. What cannot be found out means: no cache, with a sentence why.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from tender_kv import Fingerprint
from tender_kv.vllm.support import layer_specs

_WEIGHTS_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ckpt", ".npz"}
_CONFIG_FILES = ("config.json", "params.json", "hf_quant_config.json", "quantize_config.json")
_ROPES_OF_MODEL_LENGTH = re.compile(r'"(longrope|su|dynamic)"')
"""Rotary embeddings whose values depend on the longest sequence the engine was started for."""


class IdentityUnknown(Exception):
    """Something that decides the bytes cannot be found out; the text is a sentence for the user."""


class Identity(NamedTuple):
    """The fields of the namespace's descriptor."""

    model: str
    weights: str
    kv_dtype: str
    quantisation: str
    page_format: str
    layout_fingerprint: bytes
    tensor_parallel: int
    tokens_per_block: int
    blocks_per_chunk: int
    part_block_bytes: list[int]


def identify(vllm_config: Any, group: Any, layout: Any, blocks_per_chunk: int, label: str | None) -> Identity:
    """Reads files: a second for 100 GB of weights that were just loaded. Raises IdentityUnknown."""
    ranks = vllm_config.parallel_config.tensor_parallel_size
    [dtype] = {str(spec.dtype) for spec in layer_specs(group)}
    [quantisation] = {spec.kv_quant_mode.name.lower() for spec in layer_specs(group)}
    model = model_name(vllm_config.model_config.model)
    return Identity(
        model=f"{model} [{label}]" if label else model,
        weights=weights_name(vllm_config.model_config, vllm_config.load_config),
        kv_dtype=f"{dtype} as {vllm_config.cache_config.cache_dtype}",
        quantisation=quantisation,
        page_format=layout.page_format,
        layout_fingerprint=layout.fingerprint,
        tensor_parallel=ranks,
        tokens_per_block=group.kv_cache_spec.block_size,
        blocks_per_chunk=blocks_per_chunk,
        # Every rank has the same number of heads.
        part_block_bytes=[layout.block_bytes(0)] * ranks,
    )


def model_name(model: str) -> str:
    """Without the folder a local model lies in, so that hosts may keep it in different places: its content is in
    the weights' name."""
    return Path(model).resolve().name if os.path.exists(model) else model


def weights_name(model_config: Any, load_config: Any) -> str:
    """By content. The weights' numbers, and all settings that change what is computed from them."""
    fingerprint = Fingerprint("weights")
    _settings(fingerprint, model_config)
    if load_config.load_format == "dummy":
        fingerprint.field("dummy", str(model_config.seed).encode())
        return f"dummy {fingerprint.digest().hex()}"
    place = _place(model_config, load_config)
    files = weights_files(place)
    if not files:
        raise IdentityUnknown(f"no weights were found in {place}, so they cannot be named by content.")
    try:
        for path in files:
            fingerprint.weights_file(path.name, path)
    except OSError as error:
        raise IdentityUnknown(f"the weights cannot be read to name them by content ({error}).") from error
    return f"blake3 {fingerprint.digest().hex()}"


def weights_files(place: Path) -> list[Path]:
    """The files that decide what the model computes, in an order that every host finds."""
    if place.is_file():
        return [place]
    found = [path for path in place.iterdir() if path.suffix in _WEIGHTS_SUFFIXES and path.is_file()]
    if not found:
        return []
    found += [place / name for name in _CONFIG_FILES if (place / name).is_file()]
    return sorted(found)


def _place(model_config: Any, load_config: Any) -> Path:
    model = model_config.model_weights or model_config.model
    if os.path.exists(model):
        return Path(model)
    if "://" in model:
        raise IdentityUnknown(f"weights loaded from {model} cannot be named by content; use a local copy.")
    try:
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(
                model, revision=model_config.revision, cache_dir=load_config.download_dir, local_files_only=True
            )
        )
    except Exception as error:
        raise IdentityUnknown(
            f"the local copy of the weights of {model} was not found, so they cannot be named by content ({error})."
        ) from error


def _settings(fingerprint: Fingerprint, model_config: Any) -> None:
    config = model_config.hf_config.to_dict()
    for where_it_came_from in ("_name_or_path", "name_or_path", "transformers_version"):
        config.pop(where_it_came_from, None)
    text = _stable(json.dumps(config, sort_keys=True, default=repr))
    fingerprint.field("config", text.encode())
    for name in ("dtype", "quantization", "quantization_config", "model_impl", "disable_sliding_window"):
        fingerprint.field(name, _stable(repr(getattr(model_config, name, None))).encode())
    if _ROPES_OF_MODEL_LENGTH.search(text):
        fingerprint.field("max_model_len", str(model_config.max_model_len).encode())


def _stable(text: str) -> str:
    """Without the addresses that Python prints for objects, which differ between processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)
