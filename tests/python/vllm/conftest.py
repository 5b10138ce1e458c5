"""Fixtures of the vLLM suite. Without the engine the suite does not skip: it says what to do and fails."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import models
from daemon import Daemon, program
from spec import SUITE_CONNECTOR, Spec


@pytest.fixture(scope="session", autouse=True)
def prerequisites() -> None:
    """Engine, connector and programs are there, before the first minute is spent."""
    for module, advice in (("vllm", "make setup"), ("tender_kv", "make wheel")):
        # `find_spec` of a folder without __init__.py finds a namespace; the engine is a package with an origin.
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:
            pytest.exit(f"{module} is not installed in this environment: run `{advice}`", returncode=2)
    for name in ("tenderd", "tender"):
        program(name)


@pytest.fixture(scope="session")
def model(model_cache: Path):
    """Makes the folder of a model of some kind."""
    return lambda kind: str(models.model_dir(kind, model_cache))


@pytest.fixture(scope="session")
def llama(model) -> str:
    return model("llama")


@pytest.fixture(scope="session")
def qwen3(model) -> str:
    return model("qwen3")


@pytest.fixture(scope="session")
def lora_adapters(model_cache: Path) -> list[str]:
    return [str(models.adapter_dir(seed, model_cache)) for seed in (1, 2)]


@pytest.fixture
def daemon(tmp_path: Path):
    """A running `tenderd` of this test alone."""
    with Daemon(tmp_path / "daemon") as running:
        yield running


@pytest.fixture
def spec(llama: str, request: pytest.FixtureRequest):
    """Makes a Spec for a scenario on the llama model, with Tender at the fixture `daemon` unless told otherwise."""

    def make(scenario: str, connector: dict | None = None, **changes) -> Spec:
        if connector is None:
            connector = {"address": request.getfixturevalue("daemon").address}
        return Spec(**{"scenario": scenario, "model": llama, "connector": {**SUITE_CONNECTOR, **connector}, **changes})

    return make
