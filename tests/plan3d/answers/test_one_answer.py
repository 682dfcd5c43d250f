"""Python gives the plans that the command line gives, for every search among the goldens."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from string import Template
from typing import Any

import pytest

from plan3d import InputError, NoFeasiblePlanError, find_cluster, find_plans
from plan3d.answers import search as answers
from plan3d.answers.search import SearchRequest
from plan3d.cli.main import main
from plan3d.search.result.search_result import SearchResult
from plan3d.simulator.plan.plan import plan_of_record

TESTS = Path(__file__).parents[2]
TABLES = tomllib.loads((TESTS / "goldens" / "questions.toml").read_text(encoding="utf-8"))
LONG = ("dynamic-programming", "integer-programming", "--report", "--second-pool", "--help-fields")
"""What takes long, or is no question of find_plans."""


def searches() -> list[str]:
    """The searches among the goldens' commands."""
    named = TABLES["questions"]["search"].values()
    lines = [line for lines in named for line in ([lines] if isinstance(lines, str) else lines)]
    texts = [" ".join(Template(line).substitute(TABLES["words"]).split()) for line in lines]
    texts = [text.removeprefix("terminal ").partition(" > ")[0] for text in texts]
    return [t for t in texts if t.startswith("search ") and not any(word in t for word in LONG)]


class Asked(BaseException):
    """A request instead of its answer; it passes every handler of the command line."""


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files that the goldens' commands name."""
    monkeypatch.chdir(tmp_path)
    for name, place in TABLES["inputs"].items():
        (tmp_path / name).symlink_to(TESTS.parent / place)
    for name, text in TABLES["files"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")


def requested(ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> SearchRequest | int:
    """What reaches the one search of every entrance; the exit code of what is refused before."""

    def stop(request: SearchRequest) -> None:
        raise Asked(request)

    with monkeypatch.context() as patched, contextlib.redirect_stdout(io.StringIO()):
        patched.setattr(answers, "search", stop)
        try:
            return int(str(ask()))
        except Asked as asked:
            request: SearchRequest = asked.args[0]
            return request


def in_python(request: SearchRequest) -> SearchResult:
    """The answer of find_plans, or of find_cluster, to the question of a request."""
    ranking, training = request.ranking, request.question.training
    options: dict[str, Any] = {f.name: getattr(ranking, f.name) for f in fields(ranking)}
    options |= {"families": request.families, "progress": None}
    if training is not None and training.sizes_cluster:
        limits = {f.name: getattr(training, f.name) for f in fields(training)}
        return find_cluster(request.question.task, **limits, **options)
    return find_plans(request.question.task, **options)


@pytest.mark.parametrize("words", searches())
def test_the_same_request_from_python(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requested(lambda: main(shlex.split(words)), monkeypatch)
    if isinstance(asked, int):
        assert asked in (InputError.exit_code, NoFeasiblePlanError.exit_code)
        return
    again = requested(lambda: in_python(asked), monkeypatch)
    assert isinstance(again, SearchRequest)
    assert again.question.task == asked.question.task
    assert replace(again.ranking, progress=None) == replace(asked.ranking, progress=None)
    assert again.families == asked.families


@pytest.mark.parametrize("words", [w for w in searches() if "--json" in w][::6])
def test_the_same_plans_in_python(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requested(lambda: main(shlex.split(words)), monkeypatch)
    assert isinstance(asked, SearchRequest)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(shlex.split(words))
    printed = [record["plan"] for record in json.loads(out.getvalue())["plans"]]
    plans = [str(plan_of_record(record)) for record in printed]
    assert plans == list(map(str, in_python(asked).plans))
