"""Every kind of model that the engine runs on a CPU: what Tender serves is what the engine would have computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness import LOGPROB_TOLERANCE, assert_forgets, assert_same_answers, assert_served, run_both, run_side

HIT_PASSES = ["again", "turns", "branches", "branches-again"]


@dataclass(frozen=True)
class Kind:
    """A model, how the engine runs it, and what has to come back at least."""

    model: str
    again: dict[str, int]
    """Tokens of each prompt that come back when it is asked again."""
    engine: dict = field(default_factory=dict)
    chunks: dict = field(default_factory=dict)
    inside: bool = True
    """Whether a prompt that leaves another one in its middle can be served: not where the engine keeps the states of
    prompts' ends only."""


KINDS = {
    # Windows are freed while a chunk is still being computed: its first blocks are gone before it is stored.
    "gemma3": Kind(
        "gemma3", {"p97": 0, "p333": 256, "p640": 512, "p1001": 768}, engine={"max_num_batched_tokens": 160}
    ),
    "gemma3-small-chunks": Kind(
        "gemma3", {"p97": 64, "p333": 320, "p640": 576, "p1001": 960}, chunks={"tokens_per_chunk": 64}
    ),
    "gemma4": Kind("gemma4", {"p97": 64, "p333": 320, "p640": 576, "p1001": 960}, chunks={"tokens_per_chunk": 64}),
    "mistral": Kind("mistral", {"p97": 0, "p333": 256, "p640": 512, "p1001": 768}),
    "gpt-oss": Kind("gpt-oss", {"p97": 64, "p333": 320, "p640": 576, "p1001": 960}, chunks={"tokens_per_chunk": 64}),
    "llama4": Kind("llama4", {"p97": 64, "p333": 320, "p640": 576, "p1001": 960}, chunks={"tokens_per_chunk": 64}),
    # The engine's CPU kernel cannot leave a state inside a pass, so a pass ends at each boundary.
    "granite-hybrid": Kind(
        "granite-hybrid",
        {"p97": 64, "p333": 320, "p640": 576, "p1001": 960},
        engine={"max_num_batched_tokens": 64},
        inside=False,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_hits_of_every_kind(kind, spec, model, daemon, tmp_path: Path):
    case = KINDS[kind]
    connector = {"address": daemon.address, "blocks_per_chunk": None, **case.chunks}
    plain, tender = run_both(
        spec("every_kind_of_hit", connector=connector, model=model(case.model), engine=case.engine), tmp_path
    )
    assert_same_answers(plain, tender)
    assert_forgets(plain, ["again"])
    cached = tender.cached("again")
    short = {name: cached[name] for name, tokens in case.again.items() if cached[name] < tokens}
    assert not short, short
    for name in [name for name in HIT_PASSES if case.inside or name != "branches"]:
        assert sum(tender.cached(name).values()) > sum(plain.cached(name).values()), (name, tender.cached(name))
    assert tender.loads_failed() == 0, tender.counters


def test_latents(spec, model, daemon, tmp_path: Path):
    """The engine's CPU kernels are not exact for latents: prompts that are computed together change each other, and a
    prefill says something else than a decode. So one request at a time, and decodes compared with decodes."""
    tender = run_side(
        spec("continued_decode", model=model("deepseek-v2"), engine={"max_num_seqs": 1}), tmp_path, "with"
    )
    assert tender.facts["cached"] == {"1-1": 64, "1-65": 128, "5-1": 320, "5-65": 384}
    assert tender.facts["worst"] <= LOGPROB_TOLERANCE
    assert tender.loads_failed() == 0, tender.counters


def test_gated_delta_nets(spec, model, daemon, tmp_path: Path):
    """The engine's CPU kernels take them in bfloat16 only, and a block then has 1056 tokens."""
    engine = {"dtype": "bfloat16", "num_gpu_blocks_override": 64}
    connector = {"address": daemon.address, "blocks_per_chunk": None}
    plain, tender = run_both(spec("demo", connector=connector, model=model("qwen3-next"), engine=engine), tmp_path)
    assert_same_answers(plain, tender)
    assert_forgets(plain, ["again"])
    assert_served(tender, "again", 1056)


# Rejected drafts leave slots behind the frontier that were written with other tokens.
NGRAMS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2}


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_rejected_drafts_are_never_stored(kind, spec, model, daemon, tmp_path: Path):
    plain, tender = run_both(spec("drafts", model=model(kind), engine={"speculative_config": NGRAMS}), tmp_path)
    drafted, accepted = (tender.metrics[f"spec_decode_num_{what}_tokens"] for what in ("draft", "accepted"))
    assert drafted > accepted, "no draft was rejected"
    assert_same_answers(plain, tender)
    assert_forgets(plain, ["again"])
    assert_served(tender, "again", {"p61": 64, "p150": 256, "p333": 640})
    # The answers' slots too.
    assert tender.cached("turns")["p61"] >= 192


def test_eight_bit_caches(spec, model, daemon, tmp_path: Path):
    engine = {"kv_cache_dtype": "fp8"}
    plain, tender = run_both(spec("every_kind_of_hit", engine=engine), tmp_path)
    assert_same_answers(plain, tender)
    assert_forgets(plain, ["again"])
    assert_served(tender, "again", {"p97": 64, "p333": 320, "p640": 576, "p1001": 960, "edge": 704})


# Pools that twelve requests do not fit in, and one whose load failed does while four others still hold their blocks:
# the engine lets go of those in the order of its queue.
TROUBLE = {
    "gemma3": {"num_gpu_blocks_override": 180},
    "granite-hybrid": {"num_gpu_blocks_override": 80, "max_num_batched_tokens": 64},
}


@pytest.mark.parametrize("kind", TROUBLE)
def test_trouble_of_every_kind(kind, spec, model, tmp_path: Path):
    plain, tender = run_both(
        spec(
            "every_kind_of_trouble",
            connector={"blocks_per_chunk": None, "tokens_per_chunk": 64},
            model=model(kind),
            engine={"max_model_len": 1024, "max_num_seqs": 12, **TROUBLE[kind]},
            daemon_folder=str(tmp_path / "own"),
            link_bytes_per_s=0,
        ),
        tmp_path,
    )
    assert sorted(tender.facts["aborted_loading"]) == ["p0", "p1", "p2"], "a load was over too soon"
    assert tender.facts.get("killed_pid"), "no load was under way when the daemon was to be killed"
    assert tender.metrics["num_preemptions"] > 0, "nobody was preempted: the pool is too large for this test"
    assert_same_answers(plain, tender)
    for name in ("again", "after-abort", "crowd-again"):
        assert sum(tender.cached(name).values()) > sum(plain.cached(name).values()), (name, tender.cached(name))
    assert tender.loads_failed() > 0, tender.counters
