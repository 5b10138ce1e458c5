"""What of vLLM's configuration decides which KV bytes are right (rule 9), as the strings of a descriptor.

What cannot be determined is not guessed: `Undeterminable` switches Tender off with a sentence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tender_kv._native import Fingerprint

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# Where a model was found and by which library its config was written do not change a byte of its cache.
_CONFIG_NOISE = ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash")


class Undeterminable(Exception):
    """A sentence: what cannot be told about the model, so that its cache must not be shared."""


@dataclass(frozen=True)
class Naming:
    """The strings of a namespace descriptor."""

    model: str
    weights: str
    kv_dtype: str
    quantisation: str


def name(config: VllmConfig, spec: KVCacheSpec) -> Naming:
    """Raises Undeterminable."""
    cache, model = config.cache_config, config.model_config
    if getattr(cache, "calculate_kv_scales", False):
        raise Undeterminable(
            "calculate_kv_scales derives the cache's scales from the first batch, so its bytes differ from run to run"
        )
    dtype = str(spec.dtype).removeprefix("torch.")
    mode = getattr(spec, "kv_quant_mode", None)
    return Naming(
        model=model.served_model_name if isinstance(model.served_model_name, str) and not model.model else model.model,
        weights=_weights(config, model),
        kv_dtype=dtype if cache.cache_dtype == "auto" else f"{cache.cache_dtype} as {dtype}",
        quantisation="none" if mode is None or mode == 0 else str(getattr(mode, "name", mode)).lower(),
    )


def _weights(config: VllmConfig, model: ModelConfig) -> str:
    """How the weights came to be, in words, and a digest over them and the configuration that they run with."""
    digest = Fingerprint("weights")
    digest.field("config", _canonical(model.hf_config.to_dict()))
    digest.field("dtype", str(model.dtype).encode())
    digest.field("quantization", str(model.quantization).encode())
    load = config.load_config
    load_format = str(load.load_format)
    if load_format == "dummy":
        digest.field("seed", str(model.seed).encode())
        return f"dummy, seed {model.seed}, {digest.digest().hex()}"
    files, origin = _files(model, load)
    for path in files:
        digest.weights_file(path.name, path)
    return f"{origin}, {digest.digest().hex()}"


def _files(model: ModelConfig, load: Any) -> tuple[list[Path], str]:
    """The weights' files on this host, sorted, and in words where they are from."""
    place = Path(model.model)
    if place.is_file():
        return [place], "file"
    origin = "folder"
    if not place.is_dir():
        place, origin = _snapshot(model, load), "snapshot"
    files = sorted(path for path in place.iterdir() if path.suffix in _WEIGHT_SUFFIXES and path.is_file())
    if not files:
        raise Undeterminable(f"there are no weights files in {place}, so nothing says which weights the engine has")
    return files, origin


def _snapshot(model: ModelConfig, load: Any) -> Path:
    """The folder that the engine loaded a model of the hub from; nothing is downloaded."""
    try:
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(model.model, revision=model.revision, cache_dir=load.download_dir, local_files_only=True)
        )
    except Exception as error:
        raise Undeterminable(f"the files of the model {model.model!r} are not found on this host ({error})") from error


def _canonical(config: dict[str, Any]) -> bytes:
    """A configuration as bytes that are the same in every process. Values that JSON does not know are named by their
    type: their text might hold an address."""
    kept = {key: value for key, value in config.items() if key not in _CONFIG_NOISE}
    return json.dumps(kept, sort_keys=True, default=lambda value: type(value).__qualname__).encode()
