"""What Tender serves is what the engine would have computed: workloads without any failure in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import assert_forgets, assert_same_answers, assert_served, run_both
from scenarios import TURN_ANSWER_TOKENS, TURN_ENDS
from spec import BLOCK_TOKENS, CHUNK_TOKENS


def _whole_chunks(tokens: int) -> int:
    return tokens // CHUNK_TOKENS * CHUNK_TOKENS


def _assert_daemon_agrees(daemon, tender) -> None:
    """The daemon's own books: something is stored, and of the engine that is gone nothing is held."""
    stat = daemon.stat_without_sessions()
    assert sum(space["ready_chunks"] for space in stat["namespaces"]) > 0, stat
    assert stat["leases"] == stat["reservations"] == stat["sessions"] == 0, stat
    assert not tender.leftovers, tender.leftovers


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_repeated_prompt(kind, spec, daemon, request, tmp_path: Path):
    plain, tender = run_both(spec("repeated_prompt", model=request.getfixturevalue(kind)), tmp_path)
    assert_same_answers(plain, tender)
    assert_forgets(plain, ["again"])
    # 640 tokens are whole chunks, but one token must be left to compute.
    assert_served(tender, "again", {"p97": 64, "p333": 320, "p640": 576})
    _assert_daemon_agrees(daemon, tender)


def test_multi_turn_on_block_and_chunk_boundaries(spec, daemon, tmp_path: Path):
    plain, tender = run_both(spec("multi_turn"), tmp_path)
    assert_same_answers(plain, tender)
    assert_forgets(plain, ["turn-1", "turn-2"])
    assert_served(tender, "turn-2")
    cached = tender.cached("turn-1")
    for name, end in TURN_ENDS.items():
        # More than the first prompt's chunks: blocks written while decoding came back too. And no block that holds the
        # slot of the answer's last token, which nothing has written.
        least = _whole_chunks(end - TURN_ANSWER_TOKENS) + CHUNK_TOKENS
        most = (end - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        assert least <= cached[name] <= most, (name, cached)
        assert least <= cached[f"{name}+words"] <= most, (name, cached)
    # One token past the boundary, and the chunk before it is complete.
    assert cached["after-chunk+words"] == 3 * CHUNK_TOKENS
    _assert_daemon_agrees(daemon, tender)


def test_multi_turn_with_the_engine_core_in_its_own_process(spec, daemon, tmp_path: Path):
    plain, tender = run_both(spec("multi_turn", core_process=True), tmp_path)
    assert_same_answers(plain, tender)
    assert_served(tender, "turn-1")
    _assert_daemon_agrees(daemon, tender)


@pytest.mark.parametrize("seed", [11, 12])
def test_shared_prefixes_of_random_lengths(seed, spec, daemon, tmp_path: Path):
    plain, tender = run_both(spec("shared_prefixes", seed=seed, engine={"max_num_seqs": 4}), tmp_path)
    assert_same_answers(plain, tender)
    assert_served(tender, "again", 0)
    assert sum(tender.cached("once-more").values()) > sum(plain.cached("once-more").values())
    _assert_daemon_agrees(daemon, tender)


def test_shared_prefixes_over_the_network_transport(spec, daemon, tmp_path: Path):
    connector = {"address": daemon.address, "transport": "grpc"}
    plain, tender = run_both(spec("shared_prefixes", seed=13, connector=connector), tmp_path)
    assert_same_answers(plain, tender)
    assert_served(tender, "again", 0)
    assert tender.counters["worker"]["transport"] == "grpc"
    _assert_daemon_agrees(daemon, tender)


def test_chunked_prefill(spec, daemon, tmp_path: Path):
    plain, tender = run_both(spec("chunked_prefill", engine={"max_num_batched_tokens": 96}), tmp_path)
    assert_same_answers(plain, tender)
    assert_forgets(plain, ["again"])
    assert_served(tender, "again", {"p30": 0, "p411": 384, "p700": 640, "p448": 384})
    _assert_daemon_agrees(daemon, tender)


def test_preemption(spec, daemon, tmp_path: Path):
    engine = {"num_gpu_blocks_override": 24, "max_model_len": 512}
    plain, tender = run_both(spec("preemption", engine=engine), tmp_path)
    assert tender.metrics["num_preemptions"] > 0, "nobody was preempted: the pool is too large for this test"
    assert_same_answers(plain, tender)
    assert_served(tender, "again", 64)
    _assert_daemon_agrees(daemon, tender)
