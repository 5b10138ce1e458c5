"""Tensor parallelism: ranks share the work of storing, and engines of different sizes share what is stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness import assert_forgets, assert_same_answers, assert_served, run_both, run_side

SERVED = {"p97": 64, "p333": 320, "p640": 576}


def _ranks(count: int) -> dict:
    return {"tensor_parallel_size": count, "distributed_executor_backend": "mp"} if count > 1 else {}


def test_one_rank_reads_what_two_wrote(spec, daemon, tmp_path: Path):
    two = spec("repeated_prompt", engine=_ranks(2), core_process=True)
    plain, writer = run_both(two, tmp_path / "two")
    assert_same_answers(plain, writer)
    assert_forgets(plain, ["again"])
    assert_served(writer, "again", SERVED)
    reader = run_side(replace(two, engine=_ranks(1)), tmp_path / "one", "with")
    assert_same_answers(plain, reader)
    assert_served(reader, "first", SERVED)


def test_two_ranks_read_what_one_wrote(spec, model, daemon, tmp_path: Path):
    one = spec("repeated_prompt", model=model("gemma3"))
    plain, writer = run_both(one, tmp_path / "one")
    assert_same_answers(plain, writer)
    reader = run_side(replace(one, engine=_ranks(2), core_process=True), tmp_path / "two", "with")
    assert_same_answers(plain, reader)
    assert_served(reader, "first", SERVED)
