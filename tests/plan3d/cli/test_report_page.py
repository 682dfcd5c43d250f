"""A browser shows the report of a search, ranks its plans anew and asks for nothing outside."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from plan3d import Cluster, Model, Task, find_plans
from plan3d.cli.main import main
from plan3d.search.result.search_result import SearchResult
from plan3d.search.whatif.climb import climbed
from plan3d.simulator.plan.plan import families

SEARCH = (
    "search --model gpt3-13b --cluster a100-80gb-sxm --gpus 64 --global-batch 512 --quiet "
    "--fix tp=4 --fix cp=1 --tokens 1T --price 2 --report"
)


class Tags(HTMLParser):
    """Open tags and their text; raises AssertionError for one that closes another."""

    EMPTY = ("meta", "img", "br", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.EMPTY:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")
        for name, value in attrs:
            if name in ("src", "href"):
                assert value is not None
                assert value.startswith("data:")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data


def written(folder: Path, *words: str) -> Path:
    file = folder / "answer.html"
    assert main([*words, str(file)]) == 0
    return file


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("report"), *SEARCH.split())


def test_tags_are_closed_and_refer_to_nothing_outside(page: Path) -> None:
    tags = Tags()
    text = page.read_text(encoding="utf-8")
    tags.feed(text)
    assert tags.open == []
    assert not re.search(r"url\(|@import|https?://", text)
    assert len(tags.scripts) == 2


def test_the_ranking_has_the_interval_of_each_step(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "80 % interval" in text
    for plan in embedded(page)["record"]["plans"]:
        low, high = plan["step_seconds_interval"]
        assert f"{low:.4g} to {high:.4g}" in text


def embedded(page: Path) -> dict[str, Any]:
    """What the page's script reads."""
    tags = Tags()
    tags.feed(page.read_text(encoding="utf-8"))
    return json.loads(tags.scripts[0])


def listed(data: dict[str, Any], network: int, memory: float = 1.0) -> list[tuple[float, str]]:
    """The step and plan of each family at the batch asked for, by the rule that the page states."""
    batch = next(b for b in data["batches"] if b["global_batch"] == data["asked"]["global_batch"])
    link = [at["factor"] for at in data["links"]["positions"]].index(1)
    steps = [sum(parts) for parts in batch["seconds"][network][link]]
    families: dict[str, list[tuple[int, float, str]]] = {}
    for plan, step in zip(batch["plans"], steps, strict=True):
        if sum(plan["memory"]) <= memory * data["limit"]:
            families.setdefault(plan["family"], []).append((plan["simple"], step, plan["plan"]))
    out = []
    for plans in families.values():
        near = 1.01 * min(step for _, step, _ in plans)
        out.append(min(plan for plan in plans if plan[1] <= near)[1:])
    return sorted(out)


def simplest(found: SearchResult) -> list[tuple[float, str]]:
    """The step and plan of each family: of two listed the later, the first is the fastest."""
    assert found.costs is not None
    of = families(found.costs.plans).tolist()
    rows = {family: row for row, family in enumerate(of)}.values()
    return sorted((float(found.costs.step[row]), str(found.plans[row])) for row in rows)


@pytest.mark.parametrize(("network", "memory"), [(1, 1.0), (3, 1.0), (1, 0.5)])
def test_a_position_agrees_with_a_search_there(page: Path, network: int, memory: float) -> None:
    data = embedded(page)
    cluster = Cluster.profile("a100-80gb-sxm", gpus=64)
    rate = data["networks"]["positions"][network]["bandwidth"]
    size = memory * cluster.accelerator.memory
    changed = Cluster.profile("a100-80gb-sxm", gpus=64, inter_node_bandwidth=rate, memory=size)
    task = Task(Model.preset("gpt3-13b"), changed, sequence=2048, global_batch=512)
    choose = {"tp": [4], "cp": [1]}
    found = climbed(find_plans(task, choose=choose, families=True), choose, 10)
    ours, theirs = listed(data, network, memory), simplest(found)
    steps = [step for step, _ in theirs]
    # The page has what is found by bounds besides, as groups of micro-batches.
    for (step, _), least in zip(ours, steps, strict=True):
        assert 0.98 * least <= step <= 1.011 * least
    assert ours[0][1].split()[:2] == theirs[0][1].split()[:2]


def test_as_asked_the_page_lists_what_the_search_found(page: Path) -> None:
    task = Task(
        Model.preset("gpt3-13b"), Cluster.profile("a100-80gb-sxm", gpus=64),
        sequence=2048, global_batch=512,
    )  # fmt: skip
    choose = {"tp": [4], "cp": [1]}
    found = climbed(find_plans(task, choose=choose, families=True), choose, 10)
    data = embedded(page)
    assert [plan for _, plan in listed(data, 2)] == [plan for _, plan in simplest(found)]
    answer = [plan["plan"] for plan in data["batches"][1]["plans"] if plan["listed"]]
    assert answer == list(map(str, found.plans))


def test_names_cannot_leave_their_place(tmp_path: Path) -> None:
    folder = tmp_path / "<b>&amp;<"
    folder.mkdir()
    hostile = folder / "script><img src=x onerror=alert(1)>.json"
    shape = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 8, "intermediate_size": 1024, "vocab_size": 1000}
    hostile.write_text(json.dumps({**shape, "architectures": ["LlamaForCausalLM"]}))
    words = ("search", str(hostile), "h100-sxm", "2", "--sequence", "512", "--global-batch", "8")
    words += ("--fix", "tp=1", "--fix", "pp=1", "--fix", "cp=1")
    file = written(tmp_path, *words, "--quiet", "--report")
    tags, text = Tags(), file.read_text(encoding="utf-8")
    tags.feed(text)
    assert tags.open == []
    assert not re.search("[<>&]", tags.scripts[0])
    assert "<img src=x" not in text
    assert text.count("</script>") == 2
    assert f"--model '{hostile}'" in embedded(file)["batches"][0]["plans"][0]["launch"]


class TestInABrowser:
    """What people click."""

    PLANS = "[...document.querySelectorAll('.plans tbody tr')].map(row => row.dataset.plan)"
    COLUMN = "[...document.querySelectorAll('.plans tbody tr')].map(row => row.cells[{}].innerText)"
    BEST = "document.querySelector('.best').innerText"

    def test_it_is_shown_whole_and_asks_for_nothing(self, page: Path, browser: Any) -> None:
        browser.open(page)
        seen = browser.ask(
            "({headings: [...document.querySelectorAll('h1, h2')].map(each => each.innerText),"
            "pictures: [...document.images].map(each => each.complete && each.naturalWidth > 0),"
            "hidden: document.querySelector('[data-static]').hidden,"
            "wide: document.documentElement.scrollWidth, window: innerWidth})"
        )
        assert seen["headings"][0] == "gpt3-13b on 64 x A100-80GB-SXM4"
        assert {"What if?", "Why", "Time against memory", "Assumptions"} <= set(seen["headings"])
        assert seen["pictures"]
        assert all(seen["pictures"])
        assert seen["hidden"]
        assert seen["wide"] <= seen["window"]
        asked = [
            event["params"]["request"]["url"]
            for event in browser.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
        told = ("Log.entryAdded", "Runtime.exceptionThrown")
        assert [event for event in browser.events if event["method"] in told] == []

    def test_a_header_sorts_and_sorts_back(self, page: Path, browser: Any) -> None:
        browser.open(page)
        for falling in (False, True):
            browser.click("[data-column=bytes]")
            sizes = [float(cell) for cell in browser.ask(self.COLUMN.format(5))]
            assert sizes == sorted(sizes, reverse=falling)
            assert sizes[0] != sizes[-1]

    def test_each_slider_changes_the_answer(self, page: Path, browser: Any) -> None:
        browser.open(page)
        before = browser.ask(f"[{self.PLANS}, {self.BEST}]")
        for name in ("network", "link", "memory", "batch"):
            browser.press(f".slider-{name}", "Home")
            after = browser.ask(f"[{self.PLANS}, {self.BEST}]")
            assert after[1] != before[1], name
            if name in ("network", "memory"):
                assert after[0] != before[0], name
            if name == "network":
                assert after[0] == [plan for _, plan in listed(embedded(page), 0)]
            browser.click(".reset")
            assert browser.ask(f"[{self.PLANS}, {self.BEST}]") == before
        costs = browser.ask(self.COLUMN.format(8))
        browser.press(".slider-price", "End")
        assert browser.ask(self.COLUMN.format(8)) != costs
        assert browser.ask(self.PLANS) == before[0]

    def test_a_row_shows_its_plan_and_its_line_is_copied(self, page: Path, browser: Any) -> None:
        browser.open(page)
        plan = browser.ask(self.PLANS)[1]
        browser.click(".plans tbody tr:nth-child(2)")
        assert browser.ask("document.querySelector('.detail .chosen').innerText") == plan
        rights = ["clipboardReadWrite", "clipboardSanitizedWrite"]
        browser.tell("Browser.grantPermissions", permissions=rights)
        browser.click("[data-copy]")
        assert browser.ask("new Promise(done => setTimeout(done, 50))") is None
        line = browser.ask("navigator.clipboard.readText()")
        assert line.startswith(f"plan3d export '{plan}' --to megatron --model gpt3-13b")
        assert browser.ask("document.querySelector('[data-copy]').innerText") == "Copied"

    def test_a_bar_says_what_it_is(self, page: Path, browser: Any) -> None:
        browser.open(page)
        bars = browser.ask(
            "[...document.querySelectorAll('.waterfall .fill')]"
            ".map(({style}) => [parseFloat(style.left), parseFloat(style.width)])"
        )
        assert bars[-1] == [0, 100]
        saved = bars[1][1]  # goes back: the mask skips it
        assert sum(width for _, width in bars[:-1]) - 2 * saved == pytest.approx(100, abs=1)
        browser.point(".waterfall .bar:nth-child(2)")
        assert re.fullmatch(
            r"attention scores .*: \S+ m?s, \S+ % of the step; without it MFU \S+ %",
            browser.ask("document.querySelector('.says').innerText"),
        )

    def test_without_javascript_its_tables_are_there(self, page: Path, browser: Any) -> None:
        browser.tell("Emulation.setScriptExecutionDisabled", value=True)
        browser.open(page)
        browser.tell("Emulation.setScriptExecutionDisabled", value=False)
        shown = browser.ask(
            "({text: document.body.innerText, rows: document.querySelectorAll('td').length})"
        )
        assert "Ranking" in shown["text"]
        assert "plan3d export" in shown["text"]
        assert "What if?" not in shown["text"]
        assert shown["rows"] > 100
