"""What of vLLM's configuration decides which KV bytes are right (rule 9), as the strings of a descriptor.

What cannot be determined is not guessed: `Undeterminable` switches Tender off with a sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tender_kv._native import Fingerprint
from tender_kv.vllm.kinds import Group

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# Where a model was found and by which library its config was written do not change a byte of its cache.
_CONFIG_NOISE = ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash")

# Rotary embeddings that choose their factors by the longest context that the engine allows.
_ROPES_BY_LENGTH = (b'"longrope"', b'"su"', b'"dynamic"')


class Undeterminable(Exception):
    """A sentence: what cannot be told about the model, so that its cache must not be shared."""


@dataclass(frozen=True)
class Naming:
    """The strings of a namespace descriptor."""

    model: str
    weights: str
    kv_dtype: str
    quantisation: str


def name(config: VllmConfig, groups: list[Group]) -> Naming:
    """Raises Undeterminable."""
    cache, model = config.cache_config, config.model_config
    if getattr(cache, "calculate_kv_scales", False):
        raise Undeterminable(
            "calculate_kv_scales derives the cache's scales from the first batch, so its bytes differ from run to run"
        )
    weights = _weights(config, model)
    if any(group.lookahead_tokens for group in groups):
        weights = f"{weights}, draft {_draft(config)}"
    return Naming(
        model=model.model,
        weights=weights,
        kv_dtype=_by_layer(groups, lambda spec: _stored_as(cache.cache_dtype, spec)),
        quantisation=_by_layer(groups, _quantisation),
    )


def _by_layer(groups: list[Group], say: Callable[[Any], str]) -> str:
    """What `say` says of each layer's description: once if it is the same for all, else by group, and for groups that
    mix them as a digest that knows which layer has which."""
    told = [[say(spec) for spec in group.layers.values()] for group in groups]
    once = []
    for layers in told:
        kinds = list(dict.fromkeys(layers))
        if len(kinds) > 1:
            digest = Fingerprint("values by layer")
            for index, value in enumerate(layers):
                digest.field(str(index), value.encode())
            kinds = [f"{' and '.join(kinds)} ({digest.digest().hex()[:16]})"]
        once.append(kinds[0])
    return once[0] if len(set(once)) == 1 else "; ".join(f"{index}: {value}" for index, value in enumerate(once))


def _stored_as(cache_dtype: str, spec: Any) -> str:
    """The values of one layer: of its cells, or of each tensor of its recurrent state."""
    if (shapes := getattr(spec, "shapes", None)) is not None:
        tensors = zip(shapes, spec.dtypes, strict=True)
        states = " ".join(f"{_dtype(dtype)}{list(shape)}".replace(" ", "") for shape, dtype in tensors)
        return f"{spec.mamba_type.name.lower()} {states}"
    # Layers that are left out of the cache's quantisation have the model's type.
    quantised = cache_dtype != "auto" and spec.kv_quant_mode.value != 0
    stored = f"{cache_dtype} as {_dtype(spec.dtype)}" if quantised else _dtype(spec.dtype)
    return stored if spec.tokens_per_state == 1 else f"{stored}, {spec.tokens_per_state} tokens a state"


def _quantisation(spec: Any) -> str:
    mode = getattr(spec, "kv_quant_mode", None)
    return "none" if mode is None else mode.name.lower()


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _draft(config: VllmConfig) -> str:
    """The draft model's weights, and how it is used."""
    speculation = config.speculative_config
    use = f"{speculation.method} of {speculation.num_speculative_tokens}"
    draft = speculation.draft_model_config
    if draft is None:
        raise Undeterminable(f"nothing says which weights the draft layers of {speculation.method} speculation have")
    return f"{use}, {_weights(config, draft)}"


def _weights(config: VllmConfig, model: ModelConfig) -> str:
    """How the weights came to be, in words, and a digest over them and the configuration that they run with."""
    digest = Fingerprint("weights")
    settings = _canonical(model.hf_config.to_dict())
    digest.field("config", settings)
    if any(kind in settings for kind in _ROPES_BY_LENGTH):
        digest.field("max_model_len", str(model.max_model_len).encode())
    digest.field("implementation", str(model.model_impl).encode())
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
    """A configuration as bytes that are the same in every process: without the addresses that Python puts into the
    text of an object that has none of its own."""
    kept = {key: value for key, value in config.items() if key not in _CONFIG_NOISE}
    return json.dumps(kept, sort_keys=True, default=lambda value: re.sub(r" at 0x[0-9a-f]+", "", repr(value))).encode()
