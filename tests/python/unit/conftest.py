"""Tests of the Python package that need the wheel and nothing else: no engine, no torch, no daemon but their own."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(scope="session", autouse=True)
def wheel() -> None:
    found = importlib.util.find_spec("tender_kv")
    if found is None or found.origin is None:
        pytest.exit("tender_kv is not installed in this environment: run `make wheel`", returncode=2)
