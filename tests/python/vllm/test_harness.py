"""The suite can fail: wrong bytes, and an engine that was not helped at all, are both noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import Running, assert_same_answers, assert_served, run_side
from spec import BLOCK_TOKENS, Spec

LIAR = {"kv_connector": "LyingConnector", "kv_connector_module_path": "lying_connector", "kv_role": "kv_both"}


@pytest.mark.parametrize("kind", ["llama", "gemma3", "granite-hybrid"])
def test_unloaded_blocks_and_missing_loads_are_noticed(kind, model, tmp_path: Path):
    spec = Spec("repeated_prompt", model(kind), engine={"max_num_batched_tokens": BLOCK_TOKENS * 2})
    lies = replace(spec, engine={**spec.engine, "kv_transfer_config": LIAR})
    running = Running(lies, tmp_path, "liar")
    try:
        plain, liar = run_side(spec, tmp_path, "plain"), running.wait()
    finally:
        running.end()
    assert liar.cached("again")["p640"] > 0
    with pytest.raises(AssertionError, match="other tokens|log-probabilities differ"):
        assert_same_answers(plain, liar, ["again"])
    with pytest.raises(AssertionError, match="from Tender"):
        assert_served(plain, "again")
