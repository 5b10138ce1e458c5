"""Inputs are named by content, or the request is not cached."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tender_kv.vllm.inputs import InputNames, Unnamed


def request(**changes):
    plain = dict(
        resumable=False,
        pooling_params=None,
        lora_request=None,
        cache_salt=None,
        prompt_embeds=None,
        prompt_is_token_ids=None,
        mm_features=[],
    )
    return SimpleNamespace(**{**plain, **changes})


def lora(folder, number=1, load_inplace=False):
    return SimpleNamespace(
        lora_int_id=number, lora_path=str(folder), load_inplace=load_inplace, is_3d_lora_weight=False
    )


def picture(identifier, mm_hash=None):
    place = SimpleNamespace(offset=3, length=5)
    return SimpleNamespace(identifier=identifier, mm_hash=mm_hash, modality="image", mm_position=place)


@pytest.fixture
def adapter(tmp_path):
    def make(name, content):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(content)
        (folder / "adapter_config.json").write_text("{}")
        return folder

    return make


def test_a_plain_request_has_no_inputs():
    inputs = InputNames().of(request())
    assert (inputs.named, inputs.media) == ([], [])


def test_an_empty_salt_is_an_input():
    assert InputNames().of(request(cache_salt="")).named == [("salt", b"")]


def test_an_adapter_is_named_by_its_files_and_not_by_its_place_or_number(adapter):
    one, same, other = adapter("one", b"w"), adapter("same", b"w"), adapter("other", b"x")
    names = [InputNames().of(request(lora_request=lora(f, n))).named for f, n in ((one, 1), (same, 2), (other, 1))]
    assert names[0] == names[1] != names[2]


def test_an_adapter_that_changes_after_it_was_loaded_has_no_name(adapter):
    names, folder = InputNames(), adapter("one", b"w")
    first = names.of(request(lora_request=lora(folder)))
    assert names.of(request(lora_request=lora(folder))).named == first.named
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(b"x")
    os.utime(weights, ns=(1, 1))
    with pytest.raises(Unnamed, match="changed") as caught:
        names.of(request(lora_request=lora(folder)))
    assert caught.value.kind == "adapter"
    assert names.of(request(lora_request=lora(folder, load_inplace=True))).named != first.named


def test_an_adapter_elsewhere_has_no_name(tmp_path):
    with pytest.raises(Unnamed, match="not a folder"):
        InputNames().of(request(lora_request=lora("someone/adapter")))
    with pytest.raises(Unnamed, match="no files"):
        InputNames().of(request(lora_request=lora(tmp_path)))


def test_media_are_named_by_their_digest():
    media = InputNames().of(request(mm_features=[picture("lora:" + "ab" * 32, "ab" * 32)])).media
    assert media == [(bytes.fromhex("ab" * 32) + b"image", 3, 5)]


@pytest.mark.parametrize("identifier", ["cat.png", "ab" * 15, "lora:" + "ab" * 32, "zz" * 32])
def test_media_with_a_users_name_have_none(identifier):
    with pytest.raises(Unnamed, match="no digest"):
        InputNames().of(request(mm_features=[picture(identifier)]))


def test_a_streaming_session_is_not_cached():
    with pytest.raises(Unnamed, match="taken back"):
        InputNames().of(request(resumable=True))


def test_a_pooling_request_is_not_cached():
    with pytest.raises(Unnamed, match="hidden states"):
        InputNames().of(request(pooling_params=object()))
