"""vLLM's KV tensors, described for the layout gate (rule 5). Nothing is proved here: that is the gate's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tender_kv.vllm.kinds import Group, Unsupported

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheSpec

# Letters of a page's axes by how many there are: vLLM's views are [block, head, token, content]; whatever else comes
# gets letters by position, which says nothing but tells layouts apart.
_AXES = {3: "HNC", 2: "NC", 1: "C"}
_OTHER_AXES = "PQRSTUV"
_KERNEL_BLOCK_AXIS = "S"
_SCALE_BYTES = 4


@dataclass(frozen=True)
class Scales:
    """Where the attention kernel looks for a layer's scales; the fields are those of the native ScaleDesc."""

    address: int
    block_stride_bytes: int
    axes: list[tuple[str, int, int]]
    bytes: int = _SCALE_BYTES


@dataclass(frozen=True)
class Layer:
    """One layer's pages; the fields are those of the native LayerDesc."""

    name: str
    group: int
    address: int
    buffer_address: int
    buffer_bytes: int
    blocks: int
    block_stride_bytes: int
    axes: list[tuple[str, int, int]]
    cell_bytes: int
    page_bytes: int
    padding_bytes: int
    scales: Scales | None = None

    @property
    def place(self) -> tuple:
        """Equal for layers that share one tensor."""
        return self.address, self.block_stride_bytes, tuple(self.axes), self.cell_bytes


def describe(tensors: Mapping[str, torch.Tensor], groups: list[Group], pool_blocks: int) -> list[Layer]:
    """All layers, group after group, in the engine's order. A layer that shares the tensor of another one of its group
    has its bytes and is left out."""
    layers: dict[tuple, Layer] = {}
    for index, group in enumerate(groups):
        for name, spec in group.layers.items():
            if name not in tensors:
                raise Unsupported(f"the engine registered no tensor for layer {name}")
            for layer in _describe(name, tensors[name], index, spec, pool_blocks):
                layers.setdefault((index, layer.place), layer)
    _nothing_left_behind(tensors, groups, list(layers.values()), pool_blocks)
    return list(layers.values())


def _nothing_left_behind(
    tensors: Mapping[str, torch.Tensor], groups: list[Group], layers: list[Layer], pool_blocks: int
) -> None:
    """A tensor of no group has bytes that a load would not bring back, unless it is another layer's."""
    known = {name for group in groups for name in group.layers}
    places = {layer.place for layer in layers}
    for name in tensors.keys() - known:
        if any(layer.place not in places for layer in _describe(name, tensors[name], 0, None, pool_blocks)):
            raise Unsupported(f"the tensor of layer {name} belongs to no KV cache group")


def _describe(name: str, tensor: Any, group: int, spec: KVCacheSpec | None, pool_blocks: int) -> list[Layer]:
    """A layer's tensor; several where a recurrent state is kept in several."""
    if isinstance(tensor, (list, tuple)):
        states = enumerate(tensor)
        return [_one(f"{name}.{index}", state, group, None, pool_blocks) for index, state in states]
    return [_one(name, tensor, group, spec, pool_blocks)]


def _one(name: str, tensor: Any, group: int, spec: KVCacheSpec | None, pool_blocks: int) -> Layer:
    if not hasattr(tensor, "data_ptr"):
        raise Unsupported(f"layer {name} has no tensor but a {type(tensor).__name__}")
    shape, strides, cell = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
    kernel_blocks, rest = divmod(shape[0], pool_blocks) if shape else (0, 0)
    if not kernel_blocks or rest:
        raise Unsupported(f"layer {name} has shape {shape}, which is not led by the pool's {pool_blocks} blocks")
    letters = _AXES.get(len(shape) - 1, _OTHER_AXES)
    if len(letters) < len(shape) - 1:
        raise Unsupported(f"layer {name} has shape {shape}; so many axes are not supported")
    axes = [
        (letter, count, stride * cell) for letter, count, stride in zip(letters, shape[1:], strides[1:], strict=False)
    ]
    cell_bytes = cell
    if axes and axes[-1][2] == cell:
        # The innermost axis is contiguous: one cell.
        cell_bytes = axes.pop()[1] * cell
    block_stride = strides[0] * cell
    if kernel_blocks > 1:
        # The attention kernel's blocks are equal pieces of the engine's, one after the other.
        axes.insert(0, (_KERNEL_BLOCK_AXIS, kernel_blocks, block_stride))
        block_stride *= kernel_blocks
    page_bytes = _content_bytes(axes, cell_bytes)
    padding_bytes = 0
    if spec is not None:
        page_bytes, padding_bytes = spec.page_size_bytes, spec.page_size_bytes - spec.real_page_size_bytes
    storage = tensor.untyped_storage()
    return Layer(
        name=name,
        group=group,
        address=tensor.data_ptr(),
        buffer_address=storage.data_ptr(),
        buffer_bytes=storage.nbytes(),
        blocks=pool_blocks,
        block_stride_bytes=block_stride,
        axes=axes,
        cell_bytes=cell_bytes,
        page_bytes=page_bytes,
        padding_bytes=padding_bytes,
        scales=_scales(tensor, spec, axes, block_stride),
    )


def _content_bytes(axes: list[tuple[str, int, int]], cell_bytes: int) -> int:
    for _letter, count, _stride in axes:
        cell_bytes *= count
    return cell_bytes


def _scales(
    tensor: Any, spec: KVCacheSpec | None, axes: list[tuple[str, int, int]], block_stride: int
) -> Scales | None:
    """Quantisation by token and head keeps a cell as [keys, their scale, values, their scale]; the kernel reaches the
    scales by the strides of the cells."""
    mode = getattr(spec, "kv_quant_mode", None)
    if mode is None or not mode.is_per_token_head:
        return None
    half = tensor.shape[-1] * tensor.element_size() // 2
    return Scales(tensor.data_ptr() + half - _SCALE_BYTES, block_stride, list(axes))


def advice(layers: list[Layer]) -> str:
    """What a user can do about a layout that was refused; empty where nothing is known to help."""
    between_layers = any(layer.scales and layer.block_stride_bytes > layer.page_bytes for layer in layers)
    return "; VLLM_KV_CACHE_LAYOUT=LBHNC gives each layer a place of its own" if between_layers else ""
