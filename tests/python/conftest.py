"""Fixtures shared by all Python tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_cache() -> Path:
    """Where the tiny models are kept between runs; they are made from a fixed seed, so any copy is as good."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tender-tests"
