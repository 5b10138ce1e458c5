"""One port for each purpose in all that people read or apply: 9470 for HTTP, 9471 for engines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
_OTHER = re.compile(r"\b707[01]\b")


def texts() -> list[Path]:
    files = [REPO / "README.md", *(REPO / "docs").rglob("*"), *(REPO / "deploy").rglob("*")]
    return sorted(file for file in files if file.is_file())


@pytest.mark.parametrize("file", texts(), ids=lambda file: str(file.relative_to(REPO)))
def test_no_other_ports_are_named(file: Path) -> None:
    assert _OTHER.findall(file.read_text()) == []


def test_the_ports_are_the_daemons_own() -> None:
    source = "".join(file.read_text() for file in (REPO / "daemon/src/config").rglob("*.rs"))
    assert re.findall(r"\b(?:ADMIN|TCP)_PORT: u16 = (\d+)", source) == ["9470", "9471"]
