"""The pages name files that exist, and the model reference everything that a plan can choose."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from not_empty import not_empty

from plan3d.simulator.plan.fields import FIELDS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
FUNCTIONS = sorted(set(re.findall(r"`(simulator/[\w/]+\.py):(\w+)`", PAGE)))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FILE = r"`((?:simulator|search|plan3d|hardware_profiles|tests|docs|notebooks)/[\w./-]+)"
LINK = r"\]\((?!https?:)([^)#:\s]+)"
CHOICES = ("schedule", "sync", "compression", "topology", "cp_comm", "expert_dispatch")
"""Fields of a plan whose values are formulas."""


def public(path: Path) -> set[str]:
    """Functions and classes of a module that others use."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {n.name for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")}


@pytest.mark.parametrize(("file", "name"), FUNCTIONS, ids=[":".join(pair) for pair in FUNCTIONS])
def test_functions_that_the_reference_names_exist(file, name):
    assert name in public(ROOT / file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    named = [ROOT / name for name in re.findall(FILE, text) if "NAME" not in name]
    linked = [page.parent / name for name in re.findall(LINK, text)]
    assert [path for path in (*named, *linked) if not path.exists()] == []


@pytest.mark.parametrize("field", CHOICES)
def test_every_value_of_a_plan_is_in_the_reference(field):
    first = {code: name for name, code in reversed(list(FIELDS[field].values.names.items()))}
    for name in not_empty(first.values()):
        assert re.search(rf"`(\w+=)?{re.escape(name)}`", PAGE), name


def test_every_collective_is_in_the_reference():
    named = {name for file, name in FUNCTIONS if file.endswith("/collectives.py")}
    assert (
        public(ROOT / "simulator" / "operators" / "collectives.py")
        - {"ProcessGroup", "inside_domain"}
        == named
    )


def test_rows_have_as_many_columns_as_their_table():
    for table in not_empty(re.findall(r"(?:^\|.*\n)+", PAGE, re.M)):
        widths = {line.count("|") for line in table.splitlines()}
        assert len(widths) == 1, table
