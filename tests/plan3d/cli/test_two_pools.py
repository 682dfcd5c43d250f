"""`search --second-pool`: a table of stages, one JSON object, and what it refuses."""

from __future__ import annotations

import json
import shlex

import pytest

from plan3d.cli.main import main

ASKED = ["search", "llama-3.1-8b", "h100-sxm", "8", "--sequence", "4096", "--fix", "tp=2"]
ASKED += ["--fix", "micro_batch=1", "--fix", "cp=1", "--fix", "zero=1", "--fix", "recompute=none"]
ASKED += ["--fix", "pp=2", "--second-pool"]
BATCH = ["--global-batch", "32"]


def test_stages_are_listed_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "a100-40gb-sxm:8", *BATCH, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    plan = found["plan"]
    assert sum(stage["layers"] for stage in plan["stages"]) == 32
    assert plan["step_seconds"] < min(found["alone_step_seconds"])
    assert found["bound"] == pytest.approx(plan["step_seconds"], rel=1e-3)
    assert plan["tokens_per_second"] == pytest.approx(32 * 4096 / plan["step_seconds"])
    assert [pool["gpus"] for pool in found["pools"]] == [8, 8]
    gpus = {name: 0 for name in ("h100-sxm", "a100-40gb-sxm")}
    for stage in plan["stages"]:
        gpus[stage["cluster"]] += stage["gpus"]
    assert set(gpus.values()) == {8}
    assert main([*ASKED, "a100-40gb-sxm:8", *BATCH]) == 0
    out = capsys.readouterr().out
    assert "proven best" in out
    assert out.count("a100-40gb-sxm") >= 3


def test_a_plan_that_a_framework_launches_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """The nodes of the first stages come first, and layers are those of the stages."""
    assert main([*ASKED, "a100-40gb-sxm:8", *BATCH, "--framework", "megatron", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    first, last = plan["stages"]
    assert {(run["tp"], run["dp"]) for run in first["runs"] + last["runs"]} == {(2, 4)}
    words = shlex.split(plan["launch"])
    assert words[0] == "plan3d"
    assert main(words[1:]) == 0
    text = capsys.readouterr().out
    names = {"h100-sxm": "H100-80GB-SXM5", "a100-40gb-sxm": "A100-40GB-SXM4"}
    order = f"{names[first['cluster']]} (nodes 0 to 0) and {names[last['cluster']]} (nodes 1 to 1)"
    assert order in text
    assert f"'Et*{first['layers']}|t*{last['layers']}L'" in text
    assert "--nnodes 2 --nproc-per-node 8" in text


EXPORT = ["export", "--model", "llama-3.1-8b", "--cluster", "h100-sxm", "--sequence", "4096"]
EXPORT += [*BATCH, "--to"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["megatron", "--gpus", "16", "--second-pool", "gb200:8", "tp=2 pp=3"], "nodes-alike"),
        (["megatron", "--gpus", "12", "--second-pool", "a100-80gb-sxm:12", "pp=2"], "whole-nodes"),
        (["megatron", "--gpus", "24", "--second-pool", "a100-80gb-sxm:8", "pp=2"], "stages-in-one"),
        (["deepspeed", "--gpus", "8", "--second-pool", "a100-80gb-sxm:8", "pp=2"], "own-stages"),
        (["megatron", "--gpus", "8", "--second-pool", "v100-32gb-sxm:8", "pp=2"], "no bf16"),
        (
            [
                *("megatron", "--gpus", "8", "--second-pool", "a100-80gb-sxm:8"),
                "tp=2 dp=4 pp=2 segments=16|16:tp=4,dp=2",
            ],
            "uniform-strategy",
        ),
    ],
)
def test_what_no_framework_starts_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*EXPORT, *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["a100-40gb-sxm", *BATCH], "must be CLUSTER:GPUS"),
        (["a100-40gb-sxm:8"], "needs --global-batch"),
        (["a100-40gb-sxm:8", *BATCH, "--pareto"], "--pareto has no effect"),
        (["a100-40gb-sxm:8", *BATCH, "--backend", "spsa"], "not by the spsa backend"),
        (["a100-40gb-sxm:8", *BATCH, "--fix", "virtual_stages=2"], "there is no virtual_stages=2"),
        (["a100-40gb-sxm:8", *BATCH, "--framework", "nanotron"], "no --framework nanotron"),
    ],
)
def test_the_rest_is_refused(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASKED, *more]) == 2
    assert said in capsys.readouterr().err


def test_a_pool_that_does_not_help_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "v100-16gb-sxm:1", *BATCH, "--precision", "fp16"]) == 0
    out = capsys.readouterr().out
    assert out == "no plan over both pools is faster than 8 x h100-sxm alone\n"
