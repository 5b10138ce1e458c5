"""Where an engine's KV cache lies, and the stream on which it computes.

One worker copies from and to one memory: the host's, or one CUDA device's. With tensor parallelism every rank is a
process of its own with a device of its own; a MIG instance is a device like any other. What else there is, is refused
in a sentence, and the engine runs without Tender.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tender_kv.vllm.kinds import Unsupported


@dataclass(frozen=True)
class Memory:
    """The memory that all tensors lie in."""

    cuda_index: int | None
    """The CUDA device's number among those that this process sees; None for the host's memory."""

    def stream(self) -> int:
        """The driver's handle of the stream that the engine computes on now; 0 on the host. It is asked anew for every
        step: an engine may change it."""
        if self.cuda_index is None:
            return 0
        import torch

        return torch.cuda.current_stream(self.cuda_index).cuda_stream


HOST = Memory(cuda_index=None)


def memory_of(tensors: Mapping[str, Any]) -> Memory:
    """The one memory of all tensors; raises Unsupported where there is none."""
    found: dict[Memory, str] = {}
    for name, tensor in tensors.items():
        for one in _flat(tensor):
            found.setdefault(_one(name, one), name)
    if len(found) > 1:
        (first, one), (second, other) = list(found.items())[:2]
        raise Unsupported(
            f"layer {one} lies {_in_words(first)} and layer {other} {_in_words(second)}; a worker copies from "
            "and to one memory, so let every process have one device"
        )
    memory = next(iter(found), HOST)
    if memory.cuda_index is not None:
        _offer_compiler()
    return memory


def _flat(tensor: Any) -> Iterable[Any]:
    return tensor if isinstance(tensor, (list, tuple)) else (tensor,)


def _one(name: str, tensor: Any) -> Memory:
    device = getattr(tensor, "device", None)
    kind = getattr(device, "type", "")
    if kind == "cpu" or device is None:
        # What is no tensor at all is refused where it is described.
        return HOST
    if kind != "cuda":
        raise Unsupported(f"layer {name} lies in {kind} memory; Tender copies from and to host and CUDA memory")
    if _is_rocm():
        raise Unsupported(f"layer {name} lies in the memory of an AMD device (ROCm); Tender has kernels for CUDA only")
    if device.index is None:
        raise Unsupported(f"layer {name} lies on a CUDA device without a number")
    return Memory(cuda_index=device.index)


def _is_rocm() -> bool:
    """ROCm's build of torch calls its devices "cuda" too."""
    import torch

    return getattr(torch.version, "hip", None) is not None


def _in_words(memory: Memory) -> str:
    return "in host memory" if memory.cuda_index is None else f"on CUDA device {memory.cuda_index}"


def _offer_compiler() -> None:
    """NVRTC comes with torch where no linker looks for it; once loaded, the native client finds it. Where it is
    missing, prebuilt kernels do."""
    for library in _bundled_compilers():
        try:
            ctypes.CDLL(str(library))
            return
        except OSError:
            continue


def _bundled_compilers() -> Iterator[Path]:
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        yield from sorted(Path(folder).glob("lib/libnvrtc.so.12"))
