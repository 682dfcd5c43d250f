"""A grid of tensor ranks is understood, or refused in one line, wherever a plan is taken."""

import json

import pytest

from plan3d.cli.main import main

TASK = ["--model", "megatron-7.5b", "--cluster", "a100-80gb-sxm", "--gpus", "64"]
TASK += ["--sequence", "2048", "--global-batch", "256"]
PLAN = ["--plan", "tp=8 micro_batch=8 recompute=full"]


def answer(capsys, verb, *words):
    assert main([verb, *TASK, *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out, parse_constant=pytest.fail)


def refusal(capsys, verb, *words):
    assert main([verb, *TASK, *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize("grid", ["2x4", "2.5d:2x2x2", "2x2x2", "3d:4x2"])
def test_a_grid_changes_the_answer_and_says_what_it_sends(capsys, grid):
    (flat,) = answer(capsys, "estimate", *PLAN)["plans"]
    (found,) = answer(capsys, "estimate", *PLAN, "--tp-grid", grid)["plans"]
    assert grid.rpartition(":")[2] in found["plan"]["tp_grid"]
    assert found["seconds"]["tensor_comm"] != flat["seconds"]["tensor_comm"]
    assert any(
        "a layer sends per micro-batch and rank along columns" in a for a in found["assumptions"]
    )
    assert not any("along columns" in a for a in flat["assumptions"])


def test_an_answer_is_a_plan_again(capsys, tmp_path):
    found = answer(capsys, "estimate", *PLAN, "--tp-grid", "2x2x2")
    (tmp_path / "result.json").write_text(json.dumps(found))
    again = answer(capsys, "estimate", "--plan", f"{tmp_path}/result.json#1")
    assert again["plans"][0]["step_seconds"] == found["plans"][0]["step_seconds"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tp-grid", "2x2"], "tp_grid=2d:2x2: 2 x 2 x 1 = 4 != tp = 8; grids of 8: 1d, 3d:1x1x8"),
        (["--tp-grid", "auto"], "tp_grid=auto is for a search"),
        (["--tp-grid", "8"], "tp_grid=8 must be 1d or ROWSxCOLUMNS"),
        (["--tp-grid", "1x1x8", "--precision", "fp8"], "no scaling recipe of fp8"),
    ],
)
def test_what_is_no_grid_of_the_plan_is_one_line(capsys, words, message):
    assert message in refusal(capsys, "estimate", *PLAN, *words)


def test_options_may_not_contradict_the_plan(capsys):
    words = ["--plan", "tp=8 tp_grid=2x4 micro_batch=8", "--tp-grid", "4x2"]
    assert "--tp-grid 4x2 contradicts the plan, which has tp_grid=2d:2x4" in refusal(
        capsys, "estimate", *words
    )


@pytest.mark.parametrize(
    "target", ["megatron", "megatron-bridge", "torchtitan", "deepspeed", "nanotron"]
)
def test_no_framework_is_handed_a_grid(capsys, target):
    words = ["tp=8 tp_grid=3d:2x2x2 micro_batch=8 recompute=full", "--to", target]
    assert main(["export", *words, *TASK]) == 2
    assert "(one-dimensional-tensor-parallelism)" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["dynamic-programming", "integer-programming"])
def test_programs_over_layers_have_no_grid(capsys, backend):
    assert "tp_grid" in refusal(capsys, "search", "--tp-grid", "auto", "--backend", backend)


def test_a_search_may_choose_the_grid(capsys):
    words = ["--fix", "tp=32", "--fix", "pp=1", "--fix", "cp=1", "--all-plans"]
    flat, free = (answer(capsys, "search", *words, "--tp-grid", g) for g in ("1d", "auto"))
    assert free["counts"]["candidates"] > flat["counts"]["candidates"]
    assert free["plans"][0]["step_seconds"] < flat["plans"][0]["step_seconds"]
    assert free["plans"][0]["plan"]["tp_grid"].startswith("3d:")
    same = ["--backend", "branch-and-bound"]
    proven = answer(capsys, "search", *words[:-1], "--tp-grid", "auto", *same)
    assert proven["plans"][0]["plan"] == free["plans"][0]["plan"]


def test_a_sweep_and_its_picture_compare_grids(capsys, tmp_path):
    picture = tmp_path / "grids.png"
    words = ["--over", "tp=8,32", "--over", "tp_grid=1d,auto", "--fix", "pp=1", "--fix", "cp=1"]
    points = answer(capsys, "sweep", *words, "--plot", str(picture))["points"]
    steps = {(p["tp"], p["tp_grid"]): p["step_seconds"] for p in points}
    assert steps[8, "auto"] <= steps[8, "1d"]
    assert steps[32, "auto"] < 0.8 * steps[32, "1d"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_edits_of_a_plan_on_a_grid_are_other_grids(capsys):
    found = answer(capsys, "explain", "--plan", "tp=8 tp_grid=2x2x2 micro_batch=8 recompute=full")
    grids = [edit["edit"] for edit in found["edits"] if edit["edit"].startswith("tp_grid=")]
    assert len(grids) > 2
    assert "tp_grid=3d:2x2x2" not in grids
