"""The files of the page: nothing inline, nothing from outside, and what scripts name is there."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "plan3d" / "web" / "static"
SHARED = ("drawing.js", "plans.js", "explorer.js", "explorer.css")
PAGES = {
    "index.html": {*SHARED, "page.js", "page.css", "icon.svg"},
    "report_page.py": {*SHARED, "report.js", "report.css"},
    "widget.py": {*SHARED, "widget.js"},
}
"""Who draws with which files: the page, its frozen copy and the widget have one explorer."""
CONTROLS = ("input", "select", "textarea", "button")


class Tags(HTMLParser):
    """Every tag with its attributes and the labels around it, and texts of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None], bool]] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs), "label" in self.open))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.inside += data


@pytest.fixture(scope="module")
def tags() -> Tags:
    read = Tags()
    read.feed((FOLDER / "index.html").read_text(encoding="utf-8"))
    return read


def text(*names: str) -> str:
    return "".join((FOLDER / name).read_text(encoding="utf-8") for name in names)


def test_nothing_is_inline(tags: Tags) -> None:
    assert not tags.inside.strip()
    for tag, attributes, _ in tags.tags:
        assert tag != "style"
        assert not [name for name in attributes if name == "style" or name.startswith("on")]


def test_nothing_comes_from_outside(tags: Tags) -> None:
    named = {
        value
        for _, attributes, _ in tags.tags
        for name, value in attributes.items()
        if name in ("src", "href")
    }
    ids = {attributes.get("id") for _, attributes, _ in tags.tags}
    files = {name for name in named if name and not name.startswith("#")}
    assert files == {*PAGES["index.html"], "openapi.json"}
    assert {name[1:] for name in named - files if name} <= ids
    for path in FOLDER.iterdir():
        content = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"//[\w-]+\.|url\(|@import|\bimport\(|eval\(", content), path.name


def test_every_id_of_the_script_is_in_the_page(tags: Tags) -> None:
    ids = [attributes["id"] for _, attributes, _ in tags.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    script = text("page.js")
    named = set(re.findall(r'(?:element|list)\("([\w-]+)"', script))
    fields = re.search(r"const TEXTS = \[(.*?)\]", script, re.DOTALL)
    assert fields
    named |= set(re.findall(r'"(\w+)"', fields[1]))
    assert len(named) > 15
    assert named <= set(ids)
    assert "getElementById" not in text("drawing.js", "plans.js", "explorer.js", "widget.js")


def test_every_control_has_a_name(tags: Tags) -> None:
    controls = [one for one in tags.tags if one[0] in CONTROLS]
    assert len(controls) >= 15
    assert [
        attributes
        for tag, attributes, labelled in controls
        if not labelled and tag != "button" and not attributes.get("aria-label")
    ] == []


@pytest.mark.parametrize("page", PAGES)
def test_all_three_draw_with_one_explorer(page: str) -> None:
    place = {"report_page.py": "screens/report_page.py"}.get(page, page)
    source = FOLDER.parents[1] / place if page.endswith(".py") else FOLDER / page
    content = source.read_text(encoding="utf-8")
    assert set(re.findall(r"[\w]+\.(?:js|css|svg)\b", content)) == PAGES[page]
    assert {name for name in PAGES[page] if not (FOLDER / name).is_file()} == set()


def test_a_notebook_is_given_one_module() -> None:
    scripts = text("drawing.js", "plans.js", "explorer.js", "widget.js")
    assert scripts.count("export default") == 1
    names = re.findall(r"^(?:async )?function (\w+)|^const (\w+) =", scripts, re.MULTILINE)
    flat = [one or two for one, two in names]
    assert len(flat) == len(set(flat))
