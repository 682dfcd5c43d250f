"""Pages are linked, listed and true: links and anchors, the site's navigation, what it fills in,
keys of JSON, and examples that no other test runs."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from plan3d.cli.main import main, parser
from plan3d.cli.options.table import OPTIONS
from plan3d.cli.verbs import VERBS
from plan3d.simulator.plan.fields import FIELDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_SPEC = importlib.util.spec_from_file_location("printed", DOCS / "printed.py")
assert _SPEC is not None
assert _SPEC.loader is not None
printed = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(printed)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and GitHub name them."""
    plain = (re.sub(r"[`*]", "", title) for title in re.findall(r"^#+ (.+)$", prose(page), re.M))
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_anchors_are_found(page: Path) -> None:
    wrong = []
    for name, anchor in LINK.findall(prose(page)):
        target = (page.parent / name).resolve() if name else page
        if not target.is_file():
            wrong.append(f"{name} is no file")
        elif page.parent != ROOT and not target.is_relative_to(DOCS):
            wrong.append(f"{name} is not in the site")
        elif anchor and anchor not in anchors(target):
            wrong.append(f"{name}#{anchor}")
    assert not wrong


def listed(entries: list[object]) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    for entry in entries:
        assert isinstance(entry, dict)
        for below in entry.values():
            yield from listed(below) if isinstance(below, list) else [below]


def test_every_page_is_in_the_navigation_once() -> None:
    names = list(listed(SITE["nav"]))
    assert sorted(names) == sorted(page.name for page in DOCS.glob("*.md"))
    kinds = [next(iter(entry)) for entry in SITE["nav"]]
    assert kinds == ["Start", "Tutorial", "How to", "Reference", "Explanation", "Glossary"]


def filled(name: str) -> str:
    """A page as the site has it."""
    return str(printed.on_page_markdown((DOCS / name).read_text(encoding="utf-8")))


def test_reference_pages_are_filled_when_the_site_is_built() -> None:
    assert re.findall(r"^## (\w+)$", filled("cli.md"), re.M) == list(VERBS)
    assert all(re.search(rf"^{name} ", filled("fields.md"), re.M) for name in FIELDS)
    asked = printed.LINE.findall((DOCS / "profiles.md").read_text(encoding="utf-8"))
    assert asked == ["clusters", "software", "systems", "models"]
    assert filled("index.md") == (DOCS / "index.md").read_text(encoding="utf-8")
    assert "| | head | torchtitan | torchtitan b5bcd76, distributed/fsdp.py" in filled("model.md")
    asked = printed.TABLE.search((DOCS / "textbook.md").read_text(encoding="utf-8"))
    statements = printed.table(asked["file"], asked["columns"].split())
    assert "| M6 | GPT-3, 2,048 tokens, b = 1: activations 444 GB | `plan3d textbook" in statements
    with pytest.raises(ValueError, match="exit code 2"):
        printed.printed("help nobody")


def test_commands_that_no_test_runs_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of README.md and of indented blocks; Python of README.md runs."""
    known = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^(?:    )?plan3d ([a-z].*)$", without_sessions(text), re.M):
            verb = line.partition(" ")[0]
            if verb not in VERBS:  # a sentence
                continue
            words = shlex.split(line, comments=True)
            if verb == "calibrate":
                assert main([*words, "--help"]) == 0, line
            else:
                asked = words[: words.index(">")] if ">" in words else words
                parser(verb).parse(asked, verb, OPTIONS, takes_words=True)
            known += 1
    assert known >= 40
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGES[0].read_text("utf-8"), re.M | re.S)
    exec(block, {})


def without_sessions(text: str) -> str:
    """A page without its sessions, whose commands are run: blocks that name no language."""
    return re.sub(
        r"^```(\w*)\n.*?^```$", lambda block: block[0] if block[1] else "", text, flags=re.M | re.S
    )


def keys_of(verb: str) -> Iterator[str]:
    """Keys of the JSON objects of a verb that the goldens hold, and of their plans."""
    for path in (ROOT / "tests" / "goldens" / "answers" / verb).glob("*.json"):
        for one in json.loads(path.read_text(encoding="utf-8"))["commands"]:
            found = one["stdout"]
            if isinstance(found, dict) and one["command"].endswith("--json"):
                yield from found
                plans = found.get("plans")
                yield from (key for plan in plans or () if isinstance(plan, dict) for key in plan)


@pytest.mark.parametrize("verb", ["search", "estimate", "explain", "timeline", "fits", "import"])
def test_keys_of_json_are_explained(verb: str) -> None:
    words = set(re.findall(r"`([a-z_0-9]+)`", (DOCS / "json.md").read_text(encoding="utf-8")))
    keys = set(keys_of(verb))
    assert "plan3d" in keys
    assert keys <= words
