"""What the command line says of searches that prove their answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plan3d.cli.main import main
from plan3d.search.layer_ilp.integer_programming import TOLERANCE

TASK = ["--model", "llama-7b", "--cluster", "h100-sxm", "--gpus", "16", "--global-batch", "64"]
SEARCH = ["search", *TASK, "--choose", "tp=1,2,4", "--fix", "cp=1"]
BRANCH = [*SEARCH, "--backend", "branch-and-bound"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*arguments, "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return record


def test_branch_and_bound_prints_the_exhaustive_ranking_and_its_proof(
    capsys: pytest.CaptureFixture[str],
) -> None:
    full, found = answer(capsys, *SEARCH, "--all-plans"), answer(capsys, *BRANCH)
    assert [p["plan"] for p in found["plans"]] == [p["plan"] for p in full["plans"]]
    assert found["backend"] == "branch-and-bound"
    assert found["gap"] == 0
    assert found["bound"] == pytest.approx(full["plans"][0]["step_seconds"])
    assert found["counts"]["evaluated"] < full["counts"]["evaluated"]
    assert found["proven_over"] == full["proven_over"]
    covered = set(found["proven_over"]["fields"])
    assert {"micro_batch", "micro_batch_group", "last_stage_layers", "cp_comm"} <= covered
    assert not covered & {"dp", "precision", "optimizer", "offload_optimizer"}
    assert main(BRANCH) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "proven: no plan that fits, of those searched, is better" in said
    assert "proven over: stages that are alike, all of " in said


def test_a_budget_leaves_a_gap(capsys: pytest.CaptureFixture[str]) -> None:
    few = [*(word.replace("16", "32") for word in BRANCH), "--budget", "5"]
    found = answer(capsys, *few)
    assert found["complete"] is False
    assert 0 < found["gap"] < 1
    assert main(few) == 0
    assert "of those searched, is more than" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seed", "1"], "seed has no effect: the branch-and-bound search"),
        (["--pareto"], "--pareto needs every plan costed"),
    ],
)
def test_flags_without_effect_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BRANCH, *flags]) == 2
    assert message in capsys.readouterr().err


def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    large = ["search", "--model", "gpt3-175b", "--cluster", "h100-sxm", "--gpus", "8"]
    large += ["--sequence", "2048", "--global-batch", "64", "--backend", "branch-and-bound"]
    assert main([*large, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["complete"] is True
    assert found["plans"] == []
    assert "the smallest" in found["infeasible"][0]


def test_an_integer_program_prints_a_strategy_for_each_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    layered = [*SEARCH, "--fix", "pp=2", "--fix", "micro_batch=1", "--fix", "zero=1"]
    chunks, whole = (["--fix", f"virtual_stages={v}"] for v in (2, 1))
    layered += ["--backend", "integer-programming"]
    layered += ["--memory-headroom", "80%"]
    found = answer(capsys, *layered, *whole)
    assert found["complete"] is (found["gap"] <= 1.001 * TOLERANCE)
    assert 0 <= found["gap"] < 0.03
    best = found["plans"][0]
    assert sum(run["layers"] for stage in best["plan"]["segments"] for run in stage) == 32
    assert best["memory_bytes"]["total"] <= found["memory_limit_bytes"]
    assert found["bound"] <= best["step_seconds"]
    assert found["uncovered"] == []
    assert main([*layered, *chunks]) == 0
    assert "not covered: virtual stages whose layers differ" in capsys.readouterr().out
