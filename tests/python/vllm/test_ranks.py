"""Tensor parallelism: each rank stores its share of the heads, and a chunk is served when all shares are there."""

from __future__ import annotations

from pathlib import Path

from harness import assert_forgets, assert_same_answers, assert_served, run_both


def test_two_ranks_of_a_model_with_windows(spec, model, daemon, tmp_path: Path):
    engine = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    plain, tender = run_both(spec("repeated_prompt", model=model("gemma3"), engine=engine, core_process=True), tmp_path)
    assert_same_answers(plain, tender)
    assert_forgets(plain, ["again"])
    assert_served(tender, "again", {"p97": 64, "p333": 320, "p640": 576})
    (space,) = daemon.stat_without_sessions()["namespaces"]
    assert space["ready_chunks"] > 0, space
