"""Runs a scenario with and without Tender, each side in a process of its own, and compares the answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from spec import Spec

LOGPROB_TOLERANCE = 1e-3
"""Float32 runs that differ only in batching differ by at most 3e-5; wrong KV bytes by 1e-2 and more."""

SIDE_TIMEOUT_S = 420
MARK = "TENDER_TEST_RUN"
_HERE = Path(__file__).resolve().parent


@dataclass
class Side:
    """What one engine process left behind."""

    name: str
    passes: dict[str, dict]
    facts: dict
    counters: dict
    metrics: dict
    log: Path
    leftovers: list[str]
    """Command lines of processes that outlived the engine's."""

    def cached(self, pass_name: str) -> dict[str, int]:
        """Prompt tokens per request that were not computed in this pass."""
        return {name: answer["cached"] for name, answer in self.passes[pass_name]["answers"].items()}

    def loads_failed(self) -> int:
        """Loads that came back with at least one block to recompute."""
        return self.counters["worker"]["loads_failed"]


class Running:
    """A side while it runs. A mark in its environment is inherited by everything that it starts, whatever session that
    moves to, so all of it can be found and ended."""

    def __init__(self, spec: Spec, folder: Path, name: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._result = folder / f"{name}-result.json"
        self.log = folder / f"{name}.log"
        spec_path = folder / f"{name}-spec.json"
        spec.write(spec_path)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
        environment.update(spec.environment())
        self._mark = f"{MARK}={uuid.uuid4().hex}"
        environment.update([self._mark.split("=")])
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*spec.on, sys.executable, str(_HERE / "child.py"), str(spec_path), str(self._result)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=folder,
            )

    def wait(self) -> Side:
        """The side's result; raises with the end of its log if it failed or hung."""
        try:
            code = self._process.wait(SIDE_TIMEOUT_S)
            leftovers = list(_outlived(self._mark).values())
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} was not done after {SIDE_TIMEOUT_S} s\n{self._log_end()}") from None
        finally:
            self.end()
        assert code == 0, f"{self.name} ended with {code}\n{self._log_end()}"
        # An engine runs on without Tender after a fault of ours, and says the same.
        faults = [line for line in self.log.read_text(errors="replace").splitlines() if "switches itself off" in line]
        assert not faults, faults
        told = json.loads(self._result.read_text())
        passes = {done["name"]: done for done in told["passes"]}
        return Side(self.name, passes, told["facts"], told["counters"], told["metrics"], self.log, leftovers)

    def end(self) -> None:
        """Kills whatever is left of what this object started."""
        for pid in _marked(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _log_end(self) -> str:
        return f"--- end of {self.log}\n{self.log.read_text(errors='replace')[-6000:]}"


def run_side(spec: Spec, folder: Path, name: str) -> Side:
    """Runs one side to its end."""
    return Running(spec, folder, name).wait()


def run_both(spec: Spec, folder: Path) -> tuple[Side, Side]:
    """(without, with Tender); at the same time, because an engine's start is one long import on one core."""
    plain = Running(replace(spec, connector=None), folder, "without")
    try:
        tender = run_side(spec, folder, "with")
        return plain.wait(), tender
    finally:
        plain.end()


def assert_same_answers(plain: Side, tender: Side, passes: list[str] | None = None) -> None:
    """Every request of every pass has the same tokens and, within float noise, the same log-probabilities."""
    assert plain.passes.keys() == tender.passes.keys()
    compared = 0
    for pass_name in passes or list(plain.passes):
        mine, theirs = (side.passes[pass_name]["answers"] for side in (plain, tender))
        assert mine.keys() == theirs.keys(), f"pass {pass_name} finished other requests"
        for name, answer in mine.items():
            place = f"pass {pass_name}, request {name} (from cache: {theirs[name]['cached']})"
            assert answer["tokens"] == theirs[name]["tokens"], f"{place}: other tokens"
            worst = max(abs(a - b) for a, b in zip(answer["logprobs"], theirs[name]["logprobs"], strict=True))
            assert worst <= LOGPROB_TOLERANCE, f"{place}: log-probabilities differ by {worst:.2e}"
            compared += 1
    assert compared, "nothing was compared"


def assert_forgets(plain: Side, passes: list[str]) -> None:
    """Without Tender nothing survives between passes; otherwise "loaded from Tender" would mean nothing."""
    for name in passes:
        cached = plain.cached(name)
        assert not any(cached.values()), f"the engine itself remembered tokens in pass {name}: {cached}"


def assert_served(tender: Side, pass_name: str, at_least: dict[str, int] | int = 1) -> None:
    """Every request of the pass got tokens from Tender, and the connector did load bytes."""
    cached = tender.cached(pass_name)
    for name, tokens in cached.items():
        wanted = at_least if isinstance(at_least, int) else at_least[name]
        assert tokens >= wanted, f"pass {pass_name}: {name} got {tokens} tokens from Tender, not {wanted}: {cached}"
    assert tender.counters["worker"]["loaded_bytes"] > 0, tender.counters
    assert tender.metrics["external_prefix_cache_hits"] > 0, tender.metrics


def _outlived(mark: str) -> dict[int, str]:
    """Processes with the mark that still run a moment after the side ended."""
    for _ in range(50):
        left = _marked(mark)
        if not left:
            break
        time.sleep(0.1)
    return left


def _marked(mark: str) -> dict[int, str]:
    """Command lines, by process id, of the running processes with the mark in their environment."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        # Other users' processes cannot be read, and are none of ours; a zombie has no environment any more.
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found
