"""vLLM's KV tensors, described for the layout gate (rule 5). Nothing is proved here: that is the gate's business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Letters of a page's axes by how many there are: vLLM's views are [block, head, token, content]; whatever else comes
# gets letters by position, which says nothing but tells layouts apart.
_AXES = {3: "HNC", 2: "NC", 1: "C"}
_OTHER_AXES = "PQRSTUV"
_KERNEL_BLOCK_AXIS = "S"


class Unsupported(Exception):
    """A sentence: what about the engine's cache is not supported, so that it runs without Tender."""


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


def describe(tensors: Mapping[str, torch.Tensor], names: list[str], pool_blocks: int) -> list[Layer]:
    """The layers `names` of group 0, in their order. Layers that share another layer's tensor have its bytes and are
    left out."""
    layers: list[Layer] = []
    seen = set()
    for name in names:
        tensor = tensors.get(name)
        if tensor is None:
            raise Unsupported(f"the engine registered no tensor for layer {name}")
        layer = _describe(name, tensor, pool_blocks)
        place = (layer.address, tuple(layer.axes), layer.block_stride_bytes)
        if place not in seen:
            seen.add(place)
            layers.append(layer)
    return layers


def _describe(name: str, tensor: Any, pool_blocks: int) -> Layer:
    if not hasattr(tensor, "data_ptr"):
        raise Unsupported(f"layer {name} has no single tensor: models with recurrent state are not supported yet")
    if tensor.device.type != "cpu":
        raise Unsupported(
            f"layer {name} lies in {tensor.device.type} memory; this version copies from and to host memory only"
        )
    shape, strides, cell = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
    kernel_blocks, rest = divmod(shape[0], pool_blocks) if shape else (0, 0)
    if not kernel_blocks or rest:
        raise Unsupported(f"layer {name} has shape {shape}, which is not led by the pool's {pool_blocks} blocks")
    letters = _AXES.get(len(shape) - 1, _OTHER_AXES)
    axes = [
        (letter, count, stride * cell) for letter, count, stride in zip(letters, shape[1:], strides[1:], strict=False)
    ]
    if len(axes) != len(shape) - 1:
        raise Unsupported(f"layer {name} has shape {shape}; so many axes are not supported")
    cell_bytes = cell
    if axes and axes[-1][2] == cell:
        # The innermost axis is contiguous: one cell.
        cell_bytes = axes.pop()[1] * cell
    block_stride = strides[0] * cell
    if kernel_blocks > 1:
        # The attention kernel's blocks are equal pieces of the engine's, one after the other.
        axes.insert(0, (_KERNEL_BLOCK_AXIS, kernel_blocks, block_stride))
        block_stride *= kernel_blocks
    storage = tensor.untyped_storage()
    return Layer(
        name=name,
        group=0,
        address=tensor.data_ptr(),
        buffer_address=storage.data_ptr(),
        buffer_bytes=storage.nbytes(),
        blocks=pool_blocks,
        block_stride_bytes=block_stride,
        axes=axes,
        cell_bytes=cell_bytes,
    )
