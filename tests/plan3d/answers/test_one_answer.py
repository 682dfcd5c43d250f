"""Python gives the plans that the command line gives, for every search among the goldens."""

from __future__ import annotations

import contextlib
import io
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path
from string import Template
from typing import Any

import pytest

from plan3d import InputError, NoFeasiblePlanError, find_cluster, find_plans
from plan3d.answers import search as answers
from plan3d.cli.main import main

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


@pytest.mark.parametrize("words", searches())
def test_the_same_plans_in_python(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[answers.SearchRequest, answers.SearchAnswer]] = []
    true_search = answers.search

    def listen(request: answers.SearchRequest) -> answers.SearchAnswer:
        answer = true_search(request)
        asked.append((request, answer))
        return answer

    monkeypatch.chdir(tmp_path)
    for name, place in TABLES["inputs"].items():
        (tmp_path / name).symlink_to(TESTS.parent / place)
    for name, text in TABLES["files"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with monkeypatch.context() as patched, contextlib.redirect_stdout(io.StringIO()):
        patched.setattr(answers, "search", listen)
        code = main(shlex.split(words))
    if not asked:
        assert code in (InputError.exit_code, NoFeasiblePlanError.exit_code)
        return
    ((request, answer),) = asked
    ranking, training = request.ranking, request.question.training
    options: dict[str, Any] = {f.name: getattr(ranking, f.name) for f in fields(ranking)}
    options |= {"families": request.families, "progress": None}
    if training is not None and training.sizes_cluster:
        limits = {f.name: getattr(training, f.name) for f in fields(training)}
        result = find_cluster(request.question.task, **limits, **options)
    else:
        result = find_plans(request.question.task, **options)
    assert list(map(str, result.plans)) == list(map(str, answer.result.plans))
    assert result.task.gpus == answer.result.task.gpus
