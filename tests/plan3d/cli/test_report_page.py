"""A browser shows the report of a search whole, and without a network.

Skipped where no Chromium is installed. The page is shown in a frame of a page with a script,
because its own policy allows none.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from plan3d.cli.main import main

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
SEARCH = (
    "search --model gpt3-13b --cluster a100-80gb-sxm --gpus 64 --global-batch 512 --quiet "
    "--fix tp=4 --tokens 1T --price 2 --report"
)
INSPECTING = """<!DOCTYPE html><html><body>
<iframe id="shown" width="1200" height="3000" srcdoc="{page}"></iframe>
<script>
const frame = document.getElementById("shown");
frame.onload = () => {{
  const page = frame.contentDocument, root = page.documentElement;
  document.title = JSON.stringify({{
    headings: [...page.querySelectorAll("h1, h2")].map(each => each.textContent),
    pictures: [...page.images].map(each => [each.naturalWidth, each.width, each.complete]),
    rows: page.querySelectorAll("tr").length,
    requests: frame.contentWindow.performance.getEntriesByType("resource").map(each => each.name),
    width: root.scrollWidth, window: root.clientWidth, mode: page.compatMode,
  }});
}};
</script></body></html>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("report") / "costs_tables.html"
    assert main([*SEARCH.split(), str(file)]) == 0
    return file.read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Open tags; raises AssertionError for one that closes another."""

    EMPTY = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href"):
                assert value is not None
                assert value.startswith("data:")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_tags_are_closed_and_refer_to_nothing_outside(page: str) -> None:
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not re.search(r"url\(|@import|https?://", page)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_shows_it_whole_and_asks_for_nothing(page: str, tmp_path: Path) -> None:
    assert BROWSER is not None
    outer = tmp_path / "inspecting.html"
    outer.write_text(INSPECTING.format(page=html.escape(page)), encoding="utf-8")
    switches = "--headless=new --no-sandbox --disable-gpu --virtual-time-budget=20000"
    command = [BROWSER, *switches.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--enable-logging=stderr", "--dump-dom", outer.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title, done.stderr
    seen = json.loads(html.unescape(title[1]))
    assert seen["headings"][0] == "gpt3-13b on 64 x A100-80GB-SXM4"
    assert {"Ranking", "Why", "Time against memory", "Assumptions"} <= set(seen["headings"])
    assert len(seen["pictures"]) == 2
    assert all(natural > 0 and shown > 0 and done for natural, shown, done in seen["pictures"])
    assert seen["rows"] > 20
    assert seen["width"] <= seen["window"]
    assert [name for name in seen["requests"] if not name.startswith("data:")] == []
    assert seen["mode"] == "CSS1Compat"
    assert "Content Security Policy" not in done.stderr
