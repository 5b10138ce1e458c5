"""What a user writes into `kv_connector_extra_config`."""

from __future__ import annotations

import json

import pytest

from tender_kv import ConfigError
from tender_kv.vllm.config import Settings

FULL = "full_attention"


def test_nothing_is_a_private_daemon_with_defaults():
    settings = Settings.parse({})
    assert settings.address is None
    assert settings.chunk_blocks([(FULL, 16), (FULL, 1), (FULL, 1024)]) == [16, 64, 1]
    # A hit ends where a state is.
    assert settings.chunk_blocks([(FULL, 16), ("recurrent", 16)]) == [1, 1]
    assert json.loads(settings.plan_json()) == {}


def test_client_keys_are_handed_on_as_they_are():
    settings = Settings.parse(
        {"address": "tcp://h:1", "transport": "grpc", "load_deadline": "30s", "prompt_only": True}
    )
    assert json.loads(settings.client_json("tcp://h:1", "n")) == {
        "address": "tcp://h:1",
        "client_name": "n",
        "transport": "grpc",
        "load_deadline": "30s",
    }
    assert json.loads(settings.plan_json()) == {"prompt_only": True}


def test_certificates_and_a_token_are_the_clients():
    tls = {"ca": "/ca.pem", "cert": "/c.pem", "key": "/k.pem", "server_name": "tenderd"}
    settings = Settings.parse({"address": "tls://h:1", "tls": tls, "token_file": "/t"})
    client = json.loads(settings.client_json("tls://h:1", "n"))
    assert (client["tls"], client["token_file"]) == (tls, "/t")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"address": "tls://h:1", "tls": {"cert": "/c.pem"}}, "tls.cert"),
        ({"address": "tcp://h:1", "token_file": "/t"}, "in the clear"),
        ({"adress": "unix:/a"}, "did you mean 'address'"),
        ({"zzz": 1}, "the keys are"),
        ({"client_name": "me"}, "no key 'client_name'"),
        ({"address": 7}, "'address' cannot be 7"),
        ({"address": "nowhere"}, "unix:/path"),
        ({"address": "unix:/a", "arena_bytes": "1 GiB"}, "private daemon"),
        ({"tokens_per_chunk": 64, "blocks_per_chunk": 2}, "not both"),
        ({"blocks_per_chunk": 0}, "at least 1"),
        ({"blocks_per_chunk": True}, "cannot be True"),
        ({"load_deadline": "0s"}, "load_deadline"),
        ({"transport": "pigeon"}, "pigeon"),
        ({"max_store_tokens": -1}, "max_store_tokens|-1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(extra, words):
    with pytest.raises(ConfigError, match=words):
        Settings.parse(extra)


@pytest.mark.parametrize(("extra", "block"), [({"tokens_per_chunk": 100}, 16), ({"blocks_per_chunk": 65}, 16)])
def test_a_chunk_that_does_not_fit_the_blocks_is_refused(extra, block):
    with pytest.raises(ConfigError, match="kv_connector_extra_config"):
        Settings.parse(extra).chunk_blocks([(FULL, block)])


def test_chunks_in_tokens_are_exact():
    groups = [(FULL, 32), ("sliding_window", 48), ("recurrent", 528)]
    assert Settings.parse({"tokens_per_chunk": 96}).chunk_blocks(groups) == [3, 2, 1]
