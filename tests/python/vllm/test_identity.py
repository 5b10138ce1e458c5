"""Who may share with whom: processes yes, salts and adapters no."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness import assert_forgets, assert_same_answers, assert_served, run_both, run_side


def test_two_processes_with_different_hash_seeds_share(spec, tmp_path: Path):
    first = spec("repeated_prompt", hash_seed="7")
    plain, writer = run_both(first, tmp_path / "first")
    reader = run_side(replace(first, hash_seed=None), tmp_path / "second", "with")
    assert_same_answers(plain, writer)
    assert_same_answers(plain, reader)
    # The second engine's very first pass, before it stored anything itself.
    assert_served(reader, "first", {"p97": 64, "p333": 320, "p640": 576})


def test_cache_salts_do_not_share(spec, tmp_path: Path):
    plain, tender = run_both(spec("salts"), tmp_path)
    assert_same_answers(plain, tender)
    assert_forgets(plain, list(plain.passes))
    for name in ("red", "blue", "none"):
        assert tender.cached(name) == {"p": 0}, f"{name} was served somebody else's chunks"
    assert_served(tender, "red-again", 320)
    assert_served(tender, "none-again", 320)


def test_adapters_do_not_share(spec, lora_adapters, tmp_path: Path):
    engine = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    plain, tender = run_both(spec("adapters", engine=engine, adapters=lora_adapters), tmp_path)
    answers = [plain.passes[name]["answers"]["p"]["tokens"] for name in ("a", "b", "none")]
    assert answers[0] != answers[1] != answers[2] != answers[0], "the adapters change nothing: the test is blind"
    assert_same_answers(plain, tender)
    for name in ("a", "b", "none"):
        assert tender.cached(name) == {"p": 0}, f"{name} was served another adapter's chunks"
    assert_served(tender, "a-again", 320)
    assert_served(tender, "b-again", 320)
