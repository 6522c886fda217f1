"""The pages agree with the repository: no dead link, no page missing from the index, no path that is gone."""

import re
from pathlib import Path

import pytest
from batchgrowth.choices import CHOICES
from repository import tracked

from docs.generate import choices_page, choices_table, generated, with_choices

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("bench", "charts", "cluster", "crds", "docs", "examples", "operator", "plan", "tests", "trainer")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")


def pages() -> list[Path]:
    """Every Markdown file that git tracks or would track."""
    return [path for path in tracked(others=True) if path.suffix == ".md"]


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """The targets of the page's links within the repository."""
    return [target for target in LINK.findall(prose(page)) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether the link's file is there and has the heading that it names."""
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    assert [link for link in links(page) if not leads_somewhere(page, link)] == []


def test_a_dead_link_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`, three\n\n[a](#one-two-three) [b](#four) [c](gone.md) [d](https://example.com)\n")

    assert [link for link in links(page) if not leads_somewhere(page, link)] == ["#four", "gone.md"]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_on_a_page_exists(page: Path) -> None:
    """`folder/file` in backquotes, from the root of the repository."""
    assert [path for path in PATH.findall(prose(page)) if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = DOCS / "README.md"
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in links(index)}

    assert [page for page in pages() if DOCS in page.parents and page not in {index, *listed}] == []


def test_every_entry_of_the_index_has_its_sentence() -> None:
    rows = [line for line in (DOCS / "README.md").read_text().splitlines() if line.startswith("| [")]

    assert rows
    assert all(re.fullmatch(r"\| \[.+\]\(.+\) \| [A-Z].*[.?] \|", row) for row in rows)


def test_generated_pages_are_current() -> None:
    """`make generate` writes them."""
    for page, text in generated().items():
        assert page.read_text(encoding="utf-8") == text, page


def test_each_choice_is_documented() -> None:
    for entry in (entry for choice in CHOICES for entry in choice.values()):
        assert f"| `{entry.name}` | {entry.summary} |" in choices_page()
        assert f"`{entry.name}`" in choices_table()


def test_a_page_needs_markers_for_its_table() -> None:
    with pytest.raises(ValueError, match="0 tables of choices"):
        with_choices("no markers")
