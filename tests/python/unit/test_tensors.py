"""Tensors are described as they lie, and the native gate believes nothing."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from tender_kv import LayoutError, _native
from tender_kv.vllm.kinds import FULL_ATTENTION, RECURRENT, Group, Unsupported
from tender_kv.vllm.parts import Shard
from tender_kv.vllm.tensors import describe


class Tensor:
    """As much of a torch tensor as is looked at, over real memory."""

    def __init__(self, memory, shape, strides, offset=0, cell=4):
        self._memory, self._offset, self._cell = memory, offset, cell
        self.shape, self._strides = shape, strides

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


def spec(page_bytes, padding_bytes=0, per_token_head=False):
    """As much of a layer's description as is looked at."""
    mode = SimpleNamespace(is_per_token_head=per_token_head)
    content = page_bytes - padding_bytes
    return SimpleNamespace(page_size_bytes=page_bytes, real_page_size_bytes=content, kv_quant_mode=mode)


def group(*names, page_bytes=PAGE_BYTES, kind=FULL_ATTENTION, **details):
    layers = {name: spec(page_bytes, **details) for name in names}
    return Group(engine_id=0, kind=kind, tokens_per_block=4, window_tokens=0, lookahead_tokens=0, layers=layers)


def prove(layers, owner, groups=1, shard=None):
    return _native.Layout(layers, 8, [shard or Shard(1, 0, 1)] * groups, owner)


def test_two_layers_are_proved_and_fingerprinted(memory):
    tensors = {"a": Tensor(memory, SHAPE, STRIDES), "b": Tensor(memory, SHAPE, STRIDES, offset=4096)}
    layers = describe(tensors, [group("a", "b")], 8)
    assert (layers[0].block_stride_bytes, layers[0].cell_bytes) == (256, 32)
    assert layers[0].axes == [("H", 2, 128), ("N", 4, 32)]
    layout = prove(layers, tensors)
    assert layout.part_block_bytes(0) == [2 * PAGE_BYTES]
    assert len(layout.fingerprint) == 32


def test_the_fingerprint_knows_the_order_inside_a_page_and_not_the_address(memory):
    def fingerprint(strides, offset=0):
        tensors = {"a": Tensor(memory, SHAPE, strides, offset)}
        return prove(describe(tensors, [group("a")], 8), tensors).fingerprint

    assert fingerprint(STRIDES) == fingerprint(STRIDES, 4096)
    assert fingerprint(STRIDES) != fingerprint((64, 8, 16, 1))


def test_a_block_split_for_the_kernel_is_one_block_still(memory):
    split = Tensor(memory, (16, 2, 2, 8), (32, 16, 8, 1))
    (layer,) = describe({"a": split}, [group("a")], 8)
    assert layer.block_stride_bytes == PAGE_BYTES
    assert layer.axes[0] == ("S", 2, 128)
    assert prove([layer], split).part_block_bytes(0) == [PAGE_BYTES]


def test_a_layer_that_shares_anothers_tensor_is_left_out(memory):
    shared = Tensor(memory, SHAPE, STRIDES)
    tensors = {"a": shared, "b": shared, "of no group": shared}
    assert [layer.name for layer in describe(tensors, [group("a", "b")], 8)] == ["a"]


def test_groups_may_lie_over_each_other(memory):
    tensors = {"a": Tensor(memory, SHAPE, STRIDES), "b": Tensor(memory, SHAPE, STRIDES)}
    layers = describe(tensors, [group("a"), group("b")], 8)
    assert [(layer.name, layer.group) for layer in layers] == [("a", 0), ("b", 1)]
    layout = prove(layers, tensors, groups=2)
    assert layout.part_block_bytes(1) == [PAGE_BYTES]


def test_a_state_is_the_part_of_its_page_that_is_no_padding(memory):
    state = Tensor(memory, (8, 1, 1, 200), (256, 200, 200, 1), cell=1)
    (layer,) = describe({"m": state}, [group("m", page_bytes=256, padding_bytes=56, kind=RECURRENT)], 8)
    assert (layer.page_bytes, layer.padding_bytes, layer.block_stride_bytes) == (256, 56, 256)
    assert prove([layer], state).part_block_bytes(0) == [200]


def test_a_state_kept_in_several_tensors_is_several_layers(memory):
    states = [
        Tensor(memory, (8, 3, 4), (12, 4, 1)),
        Tensor(memory, (8, 2, 4), (8, 4, 1), offset=4096),
    ]
    layers = describe({"m": states}, [group("m", kind=RECURRENT)], 8)
    assert [(layer.name, layer.page_bytes) for layer in layers] == [("m.0", 48), ("m.1", 32)]
    assert prove(layers, states).part_block_bytes(0) == [80]


def test_a_rank_that_holds_several_parts_cuts_its_pages_along_the_heads(memory):
    tensor = Tensor(memory, SHAPE, STRIDES)
    layers = describe({"a": tensor}, [group("a")], 8)
    assert prove(layers, tensor, shard=Shard(4, 2, 2)).part_block_bytes(0) == [PAGE_BYTES // 2] * 4
    with pytest.raises(LayoutError, match="'a'"):
        prove(layers, tensor, shard=Shard(3, 0, 3))


def test_scales_are_described_where_the_kernel_looks_for_them(memory):
    # Two heads of 4 tokens; a cell is 8 bytes of keys, their scale, 8 bytes of values, their scale.
    tensor = Tensor(memory, (8, 2, 4, 24), (192, 96, 24, 1), cell=1)
    layers = describe({"a": tensor}, [group("a", page_bytes=192, per_token_head=True)], 8)
    (scales,) = [layer.scales for layer in layers]
    assert scales.address == tensor.data_ptr() + 8
    assert (scales.block_stride_bytes, scales.axes, scales.bytes) == (192, [("H", 2, 96), ("N", 4, 24)], 4)
    assert prove(layers, tensor).part_block_bytes(0) == [192]


def test_overlapping_layers_are_refused_by_name(memory):
    tensors = {"a": Tensor(memory, SHAPE, STRIDES), "b": Tensor(memory, SHAPE, STRIDES, offset=128)}
    # What a user reads: both layers, and both byte ranges.
    with pytest.raises(LayoutError, match="layer '[ab]' was refused: .*0x.*0x.* layer '[ab]'") as refused:
        prove(describe(tensors, [group("a", "b")], 8), tensors)
    assert str(refused.value).count("0x") == 4


def test_pages_outside_their_memory_are_refused(memory):
    tensors = {"a": Tensor(memory, SHAPE, (1 << 20, 32, 8, 1))}
    with pytest.raises(LayoutError, match="not inside its buffer"):
        prove(describe(tensors, [group("a")], 8), tensors)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (lambda m: Tensor(m, (7, 2, 4, 8), STRIDES), "not led by the pool"),
        (lambda m: Tensor(m, (2, 8, 4, 8), STRIDES), "not led by the pool"),
        (lambda m: Tensor(m, (8, *[1] * 8), [1] * 9), "so many axes"),
        (lambda m: {"k": Tensor(m, SHAPE, STRIDES)}, "no tensor but a dict"),
    ],
)
def test_what_is_not_supported_is_said(memory, tensor, words):
    with pytest.raises(Unsupported, match=words):
        describe({"a": tensor(memory)}, [group("a")], 8)


def test_no_layer_is_missing_and_no_tensor_left_behind(memory):
    here = Tensor(memory, SHAPE, STRIDES)
    with pytest.raises(Unsupported, match="no tensor for layer b"):
        describe({"a": here}, [group("a", "b")], 8)
    index_keys = Tensor(memory, SHAPE, STRIDES, offset=4096)
    with pytest.raises(Unsupported, match="layer a.indexer belongs to no KV cache group"):
        describe({"a": here, "a.indexer": index_keys}, [group("a")], 8)
