"""A request's inputs beyond its tokens, named by content (rule 9). What has no such name makes the request
uncacheable: it is neither looked up nor stored."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tender_kv._native import Fingerprint

if TYPE_CHECKING:
    from vllm.v1.request import Request

MIN_MEDIA_HEX_DIGITS = 32
"""128 bits. Shorter identifiers are no digests but names that a user chose, and two users choose the same."""

Named = tuple[str, bytes]
Media = tuple[bytes, int, int]


class Unnamed(Exception):
    """An input without a content name. `kind` is short and one of few, for counting and for logging once each."""

    def __init__(self, kind: str, why: str):
        super().__init__(why)
        self.kind = kind


@dataclass
class Inputs:
    """What goes into a request's keys besides its tokens."""

    named: list[Named] = field(default_factory=list)
    media: list[Media] = field(default_factory=list)


class InputNames:
    """Finds the names; remembers those of adapters."""

    def __init__(self) -> None:
        self._adapters: dict[tuple[int, str], tuple[tuple, bytes]] = {}

    def of(self, request: Request) -> Inputs:
        """Raises Unnamed."""
        if getattr(request, "resumable", False):
            raise Unnamed("streaming session", "tokens of a streaming session are taken back when its next input comes")
        if request.pooling_params is not None:
            raise Unnamed("pooling", "a pooling request needs the hidden states of all its tokens")
        inputs = Inputs()
        if request.lora_request is not None:
            inputs.named.append(("adapter", self._adapter(request.lora_request)))
        if request.cache_salt is not None:
            inputs.named.append(("salt", request.cache_salt.encode()))
        if request.prompt_embeds is not None:
            inputs.named.append(("prompt_embeds", _embeddings(request.prompt_embeds, request.prompt_is_token_ids)))
        inputs.media.extend(_media(feature) for feature in request.mm_features or ())
        return inputs

    def _adapter(self, lora) -> bytes:
        """Digest of the adapter's files. The engine keeps an adapter that it has loaded, so files that change under a
        loaded one say nothing about the weights in use any more."""
        folder = Path(lora.lora_path)
        if not folder.is_dir():
            raise Unnamed("adapter", f"the LoRA adapter {lora.lora_path} is not a folder on this host")
        files = _adapter_files(folder)
        key = (lora.lora_int_id, str(folder))
        known = self._adapters.get(key)
        if known is not None and not lora.load_inplace:
            if known[0] != files:
                raise Unnamed("adapter", f"the files of LoRA adapter {lora.lora_path} changed after it was loaded")
            return known[1]
        digest = Fingerprint("lora adapter")
        digest.field("3d", bytes([bool(getattr(lora, "is_3d_lora_weight", False))]))
        for name, _bytes, _time in files:
            digest.file(name, folder / name)
        self._adapters[key] = (files, digest.digest())
        return self._adapters[key][1]


def _adapter_files(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """(name, bytes, time of change) of the files that an adapter consists of."""
    found = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_file() and entry.name.endswith((".safetensors", ".bin", ".pt", ".json")):
            status = entry.stat()
            found.append((entry.name, status.st_size, status.st_mtime_ns))
    if not found:
        raise Unnamed("adapter", f"the LoRA adapter {folder} has no files")
    return tuple(found)


def _embeddings(embeddings, is_token) -> bytes:
    """Digest of the embeddings' bytes, and of which positions they stand for."""
    import torch

    flat = embeddings.detach().cpu().contiguous()
    digest = Fingerprint("prompt embeddings")
    digest.field("type", f"{flat.dtype} {tuple(flat.shape)}".encode())
    digest.field("bytes", flat.view(torch.uint8).numpy().tobytes())
    digest.field("positions", b"all" if is_token is None else bytes(map(bool, is_token)))
    return digest.digest()


def _media(feature) -> Media:
    """`mm_hash` is the engine's digest of the data and of its preparation; `identifier` is the same with the adapter's
    name in front where adapters touch the encoder, and adapters are named separately here."""
    name = feature.mm_hash or feature.identifier
    try:
        if len(name) < MIN_MEDIA_HEX_DIGITS:
            raise ValueError
        digest = bytes.fromhex(name)
    except (TypeError, ValueError):
        raise Unnamed("media", f"the identifier {name!r} of an {feature.modality} input is no digest of it") from None
    place = feature.mm_position
    return digest + feature.modality.encode(), place.offset, place.length
