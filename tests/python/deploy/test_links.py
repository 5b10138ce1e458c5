"""Every link of the documentation leads somewhere: to a file of the repository, and to a heading that is in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
# A link in text, not an image of another host and not code.
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def pages() -> list[Path]:
    folders = [REPO.glob("*.md"), (REPO / "docs").rglob("*.md"), (REPO / "deploy").rglob("*.md")]
    return sorted(page for found in [*folders, (REPO / "tests").glob("*.md")] for page in found)


def anchors(page: Path) -> set[str]:
    """Names of the headings, as forges make them."""
    found: set[str] = set()
    for line in re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines():
        heading = re.match(r"#{1,6} (.*)", line)
        if heading:
            text = re.sub(r"[^\w\- ]", "", heading[1].strip().lower()).replace(" ", "-")
            number = sum(name == text or re.fullmatch(re.escape(text) + r"-\d+", name) is not None for name in found)
            found.add(f"{text}-{number}" if number else text)
    return found


def broken(page: Path, root: Path = REPO) -> list[str]:
    """Links of the page that lead nowhere."""
    wrong = []
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        if not place.exists() or not place.is_relative_to(root):
            wrong.append(f"{target}: no such file")
        elif anchor and (place.suffix != ".md" or anchor not in anchors(place)):
            wrong.append(f"{target}: no such heading")
    return wrong


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPO)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_to_nowhere_is_noticed(tmp_path: Path) -> None:
    made = tmp_path / "page.md"
    made.write_text("# One\n[a](missing.md) [b](#one) [c](#two) `[d](code.md)` [e](https://elsewhere/x)\n")
    assert [wrong.split(":")[0] for wrong in broken(made, tmp_path)] == ["missing.md", "#two"]


def test_every_page_of_the_documentation_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    to_read = [REPO / "README.md"]
    while to_read:
        page = to_read.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = _LINK.findall(_CODE.sub("", page.read_text()))
        to_read += [
            (page.parent / link.partition("#")[0]).resolve() for link in links if not re.match(r"[a-z]+:|#", link)
        ]
    assert [str(page) for page in (REPO / "docs").rglob("*.md") if page not in seen] == []
