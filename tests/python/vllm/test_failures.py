"""Aborts, and daemons that die, are absent, or are private: the engine goes on and says the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness import assert_forgets, assert_same_answers, assert_served, run_both
from slow_link import SlowLink


def test_requests_aborted_while_decoding(spec, tmp_path: Path):
    plain, tender = run_both(spec("aborted_decode"), tmp_path)
    assert tender.facts["not_aborted"] == []
    assert_same_answers(plain, tender)
    assert_forgets(plain, ["again"])
    assert_served(tender, "again", {"p0": 128, "p1": 128, "p2": 192, "p3": 192})


def test_requests_aborted_while_loading(spec, tmp_path: Path):
    from daemon import Daemon

    with Daemon(tmp_path / "remote", tcp=True) as remote, SlowLink(remote.tcp_port, bytes_per_s=3_000_000) as link:
        connector = {"address": f"tcp://127.0.0.1:{link.port}", "load_deadline": "30s", "store_deadline": "30s"}
        plain, tender = run_both(spec("aborted_load", connector=connector), tmp_path)
    assert sorted(tender.facts["aborted_loading"]) == ["p0", "p1"], "a load was over too soon: the link is too fast"
    assert_same_answers(plain, tender)
    assert_served(tender, "again", 576)


def test_daemon_killed_while_decoding_restarted_and_used_again(spec, tmp_path: Path):
    plain, tender = run_both(_with_own_daemon(spec("daemon_killed"), tmp_path), tmp_path)
    assert tender.facts["killed_pid"]
    assert_same_answers(plain, tender)
    assert tender.facts["served_before"] > 0
    assert sum(tender.cached("without").values()) == 0
    assert tender.facts["served_after"] > 0
    assert_served(tender, "restarted")


def test_daemon_killed_while_loading(spec, tmp_path: Path):
    plain, tender = run_both(_with_own_daemon(spec("daemon_killed_loading"), tmp_path), tmp_path)
    assert_same_answers(plain, tender)
    assert_served(tender, "again", 576)
    assert tender.facts.get("killed_pid"), "no load was under way when the daemon was to be killed"


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


def _with_own_daemon(spec, folder: Path):
    """The scenario itself starts, kills and restarts this daemon."""
    from daemon import Daemon

    own = folder / "own"
    return replace(spec, daemon_folder=str(own), connector={"address": Daemon(own).address})


def _shared_memory_files() -> set[str]:
    shared = Path("/dev/shm")
    return {entry.name for entry in shared.iterdir()} if shared.is_dir() else set()
