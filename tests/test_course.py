"""The course: commands answer its ten questions, its other commands are understood, its pictures
are drawn by one command, and its notebooks stand in the site."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from not_empty import not_empty

from plan3d import find_plans
from plan3d.cli.main import main

DOCS = Path(__file__).parents[1] / "docs"
TEXT = (DOCS / "course.md").read_text(encoding="utf-8")
QUESTIONS, _, ANSWERS = TEXT.partition("## Ten questions")[2].partition("Answers:")
ANSWERED = {int(n): re.findall(r"`([^`]+)`", part)
            for n, part in re.findall(r"(\d+)\. ([^;]+)", ANSWERS)}  # fmt: skip


def commands() -> dict[int, str]:
    """The command of every question: its own, or that of the one before."""
    found, last = {}, ""
    for number, text in re.findall(r"^(\d+)\. (.+?)(?=^\d+\. |\Z)", QUESTIONS, re.M | re.S):
        own = re.findall(r"`plan3d ([^`]+)`", text)
        last = found[int(number)] = own[0] if own else last
    return found


COMMANDS = commands()


def module(name: str) -> Any:
    """A module of docs/."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_there_are_ten_short_questions() -> None:
    assert list(COMMANDS) == list(ANSWERED) == list(range(1, 11))
    assert all(ANSWERED.values())
    assert len(TEXT.split()) <= 900


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS.values()))
def test_commands_answer_the_questions(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for number in not_empty([n for n, asked in COMMANDS.items() if asked == command]):
        for answer in not_empty(ANSWERED[number]):
            assert answer in printed, f"question {number}"


def test_the_brute_force_of_the_small_problem_is_as_stated() -> None:
    result = find_plans(module("course_figures").SMALL, backend="exhaustive", families=False)
    milliseconds = f"{1e3 * result.best.step_seconds:.0f} ms"
    assert f"{result.counts.feasible:,} legal plans, the best takes {milliseconds}" in TEXT


def test_one_command_draws_every_picture_of_the_course() -> None:
    figures = module("course_figures")
    shown = re.findall(r"figures/(\w+)\.png", TEXT)
    assert sorted(shown) == sorted(figures.PICTURES)
    assert all((DOCS / "figures" / f"{name}.png").is_file() for name in not_empty(shown))
    drawn = figures.PICTURES["bubble"]()
    assert [line.get_label() for line in drawn.axes[0].lines][:2] == [
        "(p - 1) / m",
        "even stages, event by event",
    ]


def test_notebooks_become_pages() -> None:
    printed = module("printed")
    pages = {name: (DOCS / name).read_text("utf-8") for name in
             ("notebook_textbook.md", "notebook_search.md")}  # fmt: skip
    names = [printed.NOTEBOOK.search(page)["name"] for page in pages.values()]
    assert all((printed.NOTEBOOKS / f"{name}.ipynb").is_file() for name in not_empty(names))
    code = {
        "cell_type": "code",
        "source": ["1 + 1"],
        "outputs": [
            {"name": "stdout", "text": ["said\n"]},
            {"data": {"text/plain": ["2"]}},
            {"data": {"text/html": ["<table>\n\n</table>"], "text/plain": ["t"]}},
            {"data": {"image/png": "QUJD\n", "text/plain": ["p"]}},
        ],
    }
    text = printed.cells({"cells": [{"cell_type": "markdown", "source": ["# Title"]}, code]})
    assert text.split("\n\n") == [
        "# Title",
        "```python\n1 + 1\n```",
        "```text\nsaid\n```",
        "```text\n2\n```",
        "<table>\n</table>",
        '<img alt="output of the cell above" src="data:image/png;base64,QUJD">',
    ]
