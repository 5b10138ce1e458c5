"""Every kind of memory is used, or refused in a sentence; stand-ins play torch."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tender_kv.vllm import devices
from tender_kv.vllm.devices import HOST, Memory, memory_of
from tender_kv.vllm.kinds import Unsupported


def tensor(kind="cpu", index=None):
    return SimpleNamespace(device=SimpleNamespace(type=kind, index=index))


@pytest.fixture(autouse=True)
def torch(monkeypatch):
    """As much of torch as is looked at. Its streams have the device's number in their handles."""
    module = ModuleType("torch")
    module.version = SimpleNamespace(hip=None)
    module.current = {}
    module.cuda = SimpleNamespace(
        current_stream=lambda index: SimpleNamespace(cuda_stream=module.current.get(index, 0x1000 + index))
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_host_memory_has_no_stream():
    assert memory_of({"a": tensor(), "b": [tensor(), tensor()]}) == HOST
    assert memory_of({}) == HOST
    assert HOST.stream() == 0


def test_one_device_is_found_whatever_its_number_and_its_stream_is_asked_for_anew(torch):
    memory = memory_of({"a": tensor("cuda", 3), "state": (tensor("cuda", 3), tensor("cuda", 3))})
    assert memory == Memory(cuda_index=3)
    assert memory.stream() == 0x1003
    torch.current[3] = 0x77
    assert memory.stream() == 0x77


def test_every_rank_of_tensor_parallelism_has_its_own_device():
    assert [memory_of({"a": tensor("cuda", rank)}).cuda_index for rank in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            {"a": tensor("cuda", 0), "b": tensor("cuda", 1)},
            "layer a lies on CUDA device 0 and layer b on",
        ),
        ({"a": tensor("cuda", 0), "b": tensor()}, "layer b in host memory"),
        ({"a": [tensor("cuda", 0), tensor("cuda", 2)]}, "one device"),
        ({"a": tensor("xpu", 0)}, "layer a lies in xpu memory"),
        ({"a": tensor("hpu", 0)}, "hpu memory"),
        ({"a": tensor("meta")}, "meta memory"),
        ({"a": tensor("cuda", None)}, "without a number"),
    ],
)
def test_other_memory_is_refused_in_a_sentence(tensors, words):
    with pytest.raises(Unsupported, match=words):
        memory_of(tensors)


def test_amd_devices_are_not_taken_for_cuda(torch):
    torch.version.hip = "6.2"
    with pytest.raises(Unsupported, match="ROCm"):
        memory_of({"a": tensor("cuda", 0)})


def test_a_compiler_that_cannot_be_loaded_is_done_without(monkeypatch, tmp_path):
    broken = tmp_path / "libnvrtc.so.12"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(devices, "_bundled_compilers", lambda: iter([broken]))
    assert memory_of({"a": tensor("cuda", 0)}).cuda_index == 0
