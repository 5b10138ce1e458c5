"""The suite can fail: wrong bytes, and an engine that was not helped at all, are both noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import assert_same_answers, assert_served, run_side
from spec import Spec

LIAR = {"kv_connector": "LyingConnector", "kv_connector_module_path": "lying_connector", "kv_role": "kv_both"}


def test_unloaded_blocks_and_missing_loads_are_noticed(llama, tmp_path: Path):
    plain = run_side(Spec("repeated_prompt", llama), tmp_path, "plain")
    liar = run_side(Spec("repeated_prompt", llama, engine={"kv_transfer_config": LIAR}), tmp_path, "liar")
    assert liar.cached("again")["p640"] > 0
    with pytest.raises(AssertionError, match="other tokens|log-probabilities differ"):
        assert_same_answers(plain, liar)
    with pytest.raises(AssertionError, match="from Tender"):
        assert_served(plain, "again")
