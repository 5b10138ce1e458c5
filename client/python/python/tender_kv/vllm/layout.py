"""Reads how vLLM laid its KV cache out in memory. What is said here is proved by the Rust layout gate."""

from __future__ import annotations

from typing import Any, NamedTuple

GROUP = 0
"""The only group of the models that are supported now."""


class LayerDesc(NamedTuple):
    """One layer's cache: page `b` starts at `address + b * block_stride_bytes`; it has one cell of `cell_bytes` for
    every combination of steps along its axes (name, steps, bytes from one step to the next)."""

    name: str
    group: int
    address: int
    buffer_address: int
    buffer_bytes: int
    blocks: int
    block_stride_bytes: int
    axes: list[tuple[str, int, int]]
    cell_bytes: int


class LayoutUnknown(Exception):
    """A tensor that cannot be described; the text is a sentence for the user."""


def describe_layers(kv_caches: dict[str, Any], layer_names: list[str], num_blocks: int) -> list[LayerDesc]:
    """The layers in the model's order. Layers that share another one's tensor have no bytes of their own."""
    layers = []
    addresses = set()
    for name in layer_names:
        if name not in kv_caches:
            raise LayoutUnknown(f"layer {name} has no KV cache tensor, though its group lists it.")
        tensor = kv_caches[name]
        addresses.add(tensor.data_ptr())
        layers.append(describe_layer(name, tensor, num_blocks))
    for name, tensor in kv_caches.items():
        if tensor.data_ptr() not in addresses:
            raise LayoutUnknown(f"the KV cache tensor of {name} belongs to no group of layers.")
    return layers


def describe_layer(name: str, tensor: Any, num_blocks: int) -> LayerDesc:
    """vLLM's tensor of a layer has the dimensions [block, head, token, content] in any physical order; content is
    the key and the value of one token and head."""
    if tensor.device.type != "cpu":
        raise LayoutUnknown(f"layer {name} has its KV cache on {tensor.device}; only host memory is supported now.")
    if tensor.ndim != 4 or tensor.stride(3) != 1:
        raise LayoutUnknown(
            f"layer {name} has a KV cache of shape {tuple(tensor.shape)} with strides {tuple(tensor.stride())}; "
            "expected [block, head, token, content] with contiguous content."
        )
    pieces, rest = divmod(tensor.shape[0], num_blocks)
    if rest or not pieces:
        raise LayoutUnknown(f"layer {name} has {tensor.shape[0]} blocks for a pool of {num_blocks}.")
    item = tensor.element_size()
    axes = [("H", tensor.shape[1], tensor.stride(1) * item), ("N", tensor.shape[2], tensor.stride(2) * item)]
    if pieces > 1:
        # The attention kernel wants smaller blocks than the scheduler hands out: vLLM cuts each into equal pieces.
        axes.append(("S", pieces, tensor.stride(0) * item))
    storage = tensor.untyped_storage()
    return LayerDesc(
        name,
        GROUP,
        tensor.data_ptr(),
        storage.data_ptr(),
        storage.nbytes(),
        num_blocks,
        tensor.stride(0) * item * pieces,
        axes,
        tensor.shape[3] * item,
    )
