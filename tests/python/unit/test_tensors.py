"""Tensors are described as they lie, and the native gate believes nothing."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from tender_kv import LayoutError, _native
from tender_kv.vllm.tensors import Unsupported, describe


class Tensor:
    """As much of a torch tensor as is looked at, over real memory."""

    def __init__(self, memory, shape, strides, offset=0, cell=4, device="cpu"):
        self._memory, self._offset, self._cell = memory, offset, cell
        self.shape, self._strides = shape, strides
        self.device = SimpleNamespace(type=device)

    def stride(self):
        return self._strides

    def element_size(self):
        return self._cell

    def data_ptr(self):
        return ctypes.addressof(self._memory) + self._offset

    def untyped_storage(self):
        return SimpleNamespace(
            data_ptr=lambda: ctypes.addressof(self._memory), nbytes=lambda: ctypes.sizeof(self._memory)
        )


@pytest.fixture
def memory():
    return (ctypes.c_char * (1 << 16))()


# [blocks, heads, tokens, content] of 4 bytes each: 8 x 2 x 4 x 8.
SHAPE, STRIDES, PAGE_BYTES = (8, 2, 4, 8), (64, 32, 8, 1), 256


def test_two_layers_are_proved_and_fingerprinted(memory):
    tensors = {"a": Tensor(memory, SHAPE, STRIDES), "b": Tensor(memory, SHAPE, STRIDES, offset=4096)}
    layers = describe(tensors, ["a", "b"], 8)
    assert (layers[0].block_stride_bytes, layers[0].cell_bytes) == (256, 32)
    assert layers[0].axes == [("H", 2, 128), ("N", 4, 32)]
    layout = _native.Layout(layers, 8, tensors)
    assert layout.block_bytes(0) == 2 * PAGE_BYTES
    assert len(layout.fingerprint) == 32


def test_the_fingerprint_knows_the_order_inside_a_page_and_not_the_address(memory):
    def fingerprint(strides, offset=0):
        tensors = {"a": Tensor(memory, SHAPE, strides, offset)}
        return _native.Layout(describe(tensors, ["a"], 8), 8, tensors).fingerprint

    assert fingerprint(STRIDES) == fingerprint(STRIDES, 4096)
    assert fingerprint(STRIDES) != fingerprint((64, 8, 16, 1))


def test_a_block_split_for_the_kernel_is_one_block_still(memory):
    split = Tensor(memory, (16, 2, 2, 8), (32, 16, 8, 1))
    (layer,) = describe({"a": split}, ["a"], 8)
    assert layer.block_stride_bytes == PAGE_BYTES
    assert layer.axes[0] == ("S", 2, 128)
    assert _native.Layout([layer], 8, split).block_bytes(0) == PAGE_BYTES


def test_a_layer_that_shares_anothers_tensor_is_left_out(memory):
    shared = Tensor(memory, SHAPE, STRIDES)
    assert [layer.name for layer in describe({"a": shared, "b": shared}, ["a", "b"], 8)] == ["a"]


def test_overlapping_layers_are_refused_by_name(memory):
    tensors = {"a": Tensor(memory, SHAPE, STRIDES), "b": Tensor(memory, SHAPE, STRIDES, offset=128)}
    with pytest.raises(LayoutError, match="layer 'b'.*layer 'a'|layer 'a'.*layer 'b'"):
        _native.Layout(describe(tensors, ["a", "b"], 8), 8, tensors)


def test_pages_outside_their_memory_are_refused(memory):
    tensors = {"a": Tensor(memory, SHAPE, (1 << 20, 32, 8, 1))}
    with pytest.raises(LayoutError, match="not inside its buffer"):
        _native.Layout(describe(tensors, ["a"], 8), 8, tensors)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (lambda m: Tensor(m, SHAPE, STRIDES, device="cuda"), "cuda memory"),
        (lambda m: Tensor(m, (7, 2, 4, 8), STRIDES), "not led by the pool"),
        (lambda m: Tensor(m, (2, 8, 4, 8), STRIDES), "not led by the pool"),
        (lambda m: [Tensor(m, SHAPE, STRIDES)], "recurrent state"),
    ],
)
def test_what_is_not_supported_is_said(memory, tensor, words):
    with pytest.raises(Unsupported, match=words):
        describe({"a": tensor(memory)}, ["a"], 8)
    with pytest.raises(Unsupported, match="no tensor for layer b"):
        describe({}, ["b"], 8)
