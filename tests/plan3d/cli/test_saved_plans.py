"""What a search shows can be typed: rows of its screen, last#2, last#safe, and changes of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from plan3d.cli.arguments import last_answer
from plan3d.cli.main import main

LLAMA = "llama-3.1-8b h100-sxm 16 --sequence 8192"
QUESTIONS = (
    LLAMA,
    "mixtral-8x7b h100-sxm 32 --sequence 4096 --global-batch 128",
    "llama-3.1-8b h100-sxm 8 --adapter qlora --lora-targets all-linear",
    "llama-7b a100-80gb-sxm 16 --inter-node-bandwidth 25Gb/s --precision fp32",
    "llama-3.1-8b h100-sxm 16 --framework torchtitan",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def estimated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    answer = json.loads(printed(capsys, "estimate", *words, "--json"))
    out: dict[str, Any] = answer["plans"][0]
    return out


def rows_of(screen: str) -> list[tuple[str, float, str]]:
    """The handle, the step and the plan of each row under `instead`."""
    lines = screen.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("instead"))
    end = lines.index("", head)
    steps = [float(re.split(r"\s{2,}", line)[1]) for line in lines[head + 1 : end]]
    plans: list[list[str]] = []
    for line in lines[end + 1 : lines.index("", end + 1)]:
        if line.startswith("last#"):
            plans.append([])
        plans[-1] += line.split()
    return [(words[0], step, " ".join(words[1:])) for step, words in zip(steps, plans, strict=True)]


@pytest.mark.parametrize("question", QUESTIONS)
def test_rows_of_a_screen_are_plans_that_can_be_typed(
    question: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(printed(capsys, "search", *question.split()))
    assert rows
    for handle, step, plan in (*rows[:2], *rows[2:][-1:]):
        answer = estimated(capsys, handle)
        assert answer["step_seconds"] == pytest.approx(step, rel=1e-3)
        typed = estimated(capsys, *question.split(), "--plan", plan)
        assert typed["step_seconds"] == pytest.approx(answer["step_seconds"], rel=1e-9)
        assert typed["verdict"] == answer["verdict"]


def test_plan_1_may_be_at_the_edge_and_then_a_safe_one_stands_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = printed(capsys, "search", *LLAMA.split())
    first, safe = estimated(capsys, "last#1"), estimated(capsys, "last#safe")
    assert 0.5 <= first["probability_fits"] < 0.95 <= safe["probability_fits"]
    assert first["step_seconds"] < safe["step_seconds"]
    line = next(line for line in screen.splitlines() if line.startswith("safe "))
    assert f"{safe['step_seconds']:.4g} s" in line
    surely = printed(capsys, "search", *LLAMA.split(), "--risk", "0.95", "--json")
    assert json.loads(surely)["plans"][0]["probability_fits"] >= 0.95


def test_no_safe_plan_stands_beside_one_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    roomy = ["llama-7b", "h100-sxm", "16", "--global-batch", "64", "--fix", "zero=3"]
    answer = json.loads(printed(capsys, "search", *roomy, "--json"))
    assert answer["plans"][0]["verdict"] == "fits"
    assert "safe" not in answer


def test_fields_after_a_handle_replace_those_of_its_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed(capsys, "search", *LLAMA.split(), "--fix", "tp=2")
    changed = estimated(capsys, "last#1", "tp=4", "recompute=full")
    assert changed["plan"]["tp"] == 4
    assert changed["plan"]["dp"] * changed["plan"]["pp"] == 4
    assert changed["plan"]["recompute"] == "full"


def test_a_handle_brings_the_whole_question(capsys: pytest.CaptureFixture[str]) -> None:
    slow = "llama-7b a100-80gb-sxm 16 --inter-node-bandwidth 1Gb/s --fix dp=16 --top 2"
    found = json.loads(printed(capsys, "search", *slow.split(), "--json"))
    step = found["plans"][1]["step_seconds"]
    assert estimated(capsys, "last#2")["step_seconds"] == pytest.approx(step, rel=1e-9)
    assert "16 x A100" in printed(capsys, "export", "last#2", "--to", "megatron")
    fast = estimated(capsys, "last#2", "--inter-node-bandwidth", "200Gb/s")
    assert fast["step_seconds"] < step


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["last"], "there is no last search; run plan3d search first"),
        (["last#2"], "there is no last search"),
    ],
)
def test_without_a_search_there_is_no_last_one(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", *words]) == 2
    assert problem in capsys.readouterr().err


def test_a_rank_that_the_result_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "search", *LLAMA.split(), "--top", "1")
    for number in ("0", "99", "x"):
        assert main(["estimate", f"last#{number}"]) == 2
        assert "the result holds 1 plan" in capsys.readouterr().err


def test_options_of_another_kind_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "search", *LLAMA.split(), "--top", "1")
    kept = json.loads(last_answer.path().read_text(encoding="utf-8"))
    for options in ({"verb": "x"}, ["gpus"], {"gpus": ["8"]}):
        last_answer.path().write_text(json.dumps({**kept, "options": options}), encoding="utf-8")
        assert main(["estimate", "last"]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_search_without_plans_is_the_last_one_too(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "search", *LLAMA.split(), "--top", "1")
    assert main(["search", "gpt3-175b", "h100-sxm", "8", "--fix", "tp=1", "--fix", "pp=1"]) == 3
    capsys.readouterr()
    assert main(["estimate", "last"]) == 2
    assert "the result holds 0 plans" in capsys.readouterr().err


def test_an_answer_that_cannot_be_kept_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["search", *LLAMA.split(), "--top", "1"]) == 0
    assert "last#1 is not this search's plan" in capsys.readouterr().err
