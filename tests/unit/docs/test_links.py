"""Links of all pages lead to existing files and headings."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server_process import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_ELSEWHERE = ("http://", "https://", "mailto:")


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names.add(slug if slug not in found else f"{slug}-{found[slug]}")
        found[slug] = found.get(slug, 0) + 1
    return names


def broken(page: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text("utf-8")))
    for target in _LINK.findall(text):
        if target.startswith(_ELSEWHERE):
            continue
        name, _, anchor = target.partition("#")
        file = page if not name else page.parent / name
        if not file.exists():
            yield f"{target}: no such file"
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file)):
            yield f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path):
    assert not list(broken(page))


def test_every_page_of_the_docs_can_be_reached_from_the_readme():
    seen: set[Path] = set()
    to_read = [ROOT / "README.md"]
    while to_read:
        page = to_read.pop().resolve()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = (target.partition("#")[0] for target in _LINK.findall(page.read_text("utf-8")))
        to_read += [page.parent / name for name in targets if name and not name.startswith(_ELSEWHERE)]
    assert {page.resolve() for page in PAGES if page.is_relative_to(ROOT / "docs")} <= seen


def test_a_link_to_nothing_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# A `b` & c\n\n[x](#a-b--c) [y](other.md) [z](page.md#none) ![p](p.svg) `[no](link)`\n")
    assert list(broken(page)) == ["other.md: no such file", "page.md#none: no such heading", "p.svg: no such file"]
