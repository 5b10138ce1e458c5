"""Aborts, and daemons that die, are absent, or are private: the engine goes on and says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import assert_forgets, assert_same_answers, assert_served, run_both
from scenarios import FROZEN_S, SLOW_BYTES_PER_S


def test_requests_aborted_while_decoding(spec, tmp_path: Path):
    plain, tender = run_both(spec("aborted_decode"), tmp_path)
    assert tender.facts["not_aborted"] == []
    assert_same_answers(plain, tender)
    assert_forgets(plain, ["again"])
    assert_served(tender, "again", {"p0": 128, "p1": 128, "p2": 192, "p3": 192})


def test_requests_aborted_while_loading(spec, tmp_path: Path):
    plain, tender = run_both(_own_daemon(spec, "aborted_load", tmp_path, SLOW_BYTES_PER_S), tmp_path)
    assert sorted(tender.facts["aborted_loading"]) == ["p0", "p1"], "a load was over too soon: the link is too fast"
    assert_same_answers(plain, tender)
    assert_served(tender, "again", 576)


def test_daemon_killed_while_decoding_restarted_and_used_again(spec, tmp_path: Path):
    plain, tender = run_both(_own_daemon(spec, "daemon_killed", tmp_path), tmp_path)
    assert tender.facts["killed_pid"]
    assert_same_answers(plain, tender)
    assert tender.facts["served_before"] > 0
    assert sum(tender.cached("without").values()) == 0
    assert tender.facts["served_after"] > 0
    assert_served(tender, "restarted")


def test_daemon_upgraded_and_restarted_under_load(spec, tmp_path: Path):
    own = _own_daemon(spec, "daemon_upgraded", tmp_path, engine={"enable_prefix_caching": False})
    plain, tender = run_both(own, tmp_path)
    assert_same_answers(plain, tender)
    for change in tender.facts["changes"]:
        # The promise is two seconds; on a machine that does other things this is a number to look at, not a limit.
        print(
            f"{change['change']}: {change['requests']} requests, {change['misses']} without a hit, longest stretch "
            f"without one {change['longest_without_hit_s']:.2f} s, change done after {change['seconds']:.2f} s"
        )
        assert change["status"] == 0, change
        assert change["wrong"] == [], change
        # Served again, and by far not only after many seconds.
        assert change["in_a_row"] > 0, change
    assert len(tender.facts["changes"]) == 5
    assert_served(tender, "end")


def test_daemon_stopped_for_seconds_and_continued(spec, tmp_path: Path):
    frozen = _own_daemon(spec, "daemon_frozen", tmp_path)
    # The product's own deadlines: the suite's patience would be what is waited for here.
    frozen.connector.update(lookup_deadline="250ms", load_deadline="2s", store_deadline="2s")
    plain, tender = run_both(frozen, tmp_path)
    assert_same_answers(plain, tender)
    assert tender.facts["served_before"] > 0
    assert tender.facts["frozen_s"] >= FROZEN_S
    assert sum(tender.cached("still-frozen").values()) == 0
    assert tender.facts["served_after"] > 0
    assert_served(tender, "went-on")
    for side in ("scheduler", "worker"):
        # A step that had waited for a lookup or a load to fail would have taken longer than either's deadline.
        longest_s = tender.counters[side]["longest_step_us"] / 1e6
        assert longest_s < 0.25, f"{side}: a step kept the engine for {longest_s} s: {tender.counters[side]}"


@pytest.mark.parametrize("bytes_per_s", [None, SLOW_BYTES_PER_S], ids=["shm", "slow-link"])
def test_daemon_killed_while_loading(bytes_per_s, spec, tmp_path: Path):
    plain, tender = run_both(_own_daemon(spec, "daemon_killed_loading", tmp_path, bytes_per_s), tmp_path)
    assert tender.facts.get("killed_pid"), "no load was under way when the daemon was to be killed"
    assert_same_answers(plain, tender)
    assert_served(tender, "again", 576)
    if bytes_per_s:
        assert tender.loads_failed() > 0, tender.counters


def test_no_daemon_at_the_address(spec, tmp_path: Path):
    connector = {"address": f"unix:{tmp_path}/nobody.sock"}
    plain, tender = run_both(spec("repeated_prompt", connector=connector, expects_daemon=False), tmp_path)
    assert_same_answers(plain, tender)
    assert tender.cached("again") == plain.cached("again")


def test_embedded_daemon_serves_and_leaves_nothing_behind(spec, tmp_path: Path):
    before = _shared_memory_files()
    plain, tender = run_both(spec("repeated_prompt", connector={}), tmp_path)
    assert_same_answers(plain, tender)
    assert_served(tender, "again", {"p97": 64, "p333": 320, "p640": 576})
    assert not tender.leftovers, tender.leftovers
    assert not {name for name in _shared_memory_files() - before if "tender" in name}


def _own_daemon(spec, scenario: str, folder: Path, bytes_per_s: int | None = None, **changes):
    """A Spec whose scenario starts its daemon itself."""
    return spec(scenario, connector={}, daemon_folder=str(folder / "own"), link_bytes_per_s=bytes_per_s, **changes)


def _shared_memory_files() -> set[str]:
    shared = Path("/dev/shm")
    return {entry.name for entry in shared.iterdir()} if shared.is_dir() else set()
