"""`search --second-pool`: a table of stages, one JSON object, and what it refuses."""

from __future__ import annotations

import json

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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["a100-40gb-sxm", *BATCH], "must be CLUSTER:GPUS"),
        (["a100-40gb-sxm:8"], "needs --global-batch"),
        (["a100-40gb-sxm:8", *BATCH, "--pareto"], "--pareto has no effect"),
        (["a100-40gb-sxm:8", *BATCH, "--backend", "spsa"], "not by the spsa backend"),
        (["a100-40gb-sxm:8", *BATCH, "--fix", "virtual_stages=2"], "there is no virtual_stages=2"),
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
