"""The command line takes what is on the host, shows it, and refuses what no host can hold."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from plan3d.cli.main import main

TASK = ["--model", "llama-7b", "--cluster", "h100-sxm", "--gpus", "8", "--global-batch", "64"]
FEW = ["--fix", "tp=1", "--fix", "cp=1", "--fix", "pp=1", "--choose", "micro_batch=1,2"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*arguments, "--json"]) == code
    record: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return record


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a refused command."""
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize(
    ("words", "percent"),
    [(["--offload-optimizer"], 100), (["--offload-optimizer", "50%"], 50), ([], 0)],
)
def test_estimate_takes_a_share(
    capsys: pytest.CaptureFixture[str], words: list[str], percent: int
) -> None:
    (plan,) = answer(capsys, "estimate", *TASK, *words, "--plan", "micro_batch=2")["plans"]
    assert plan["plan"].get("offload_optimizer", 0) == percent
    assert ("host_memory_bytes" in plan) == bool(percent)
    assert sum(plan["seconds"].values()) == pytest.approx(plan["step_seconds"])
    (same,) = answer(
        capsys, "estimate", *TASK, "--plan", f"micro_batch=2 offload_optimizer={percent}"
    )["plans"]
    assert same["step_seconds"] == plan["step_seconds"]


def test_an_estimate_shows_copies_and_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["--plan", "micro_batch=2", "--offload-activations", "--offload-optimizer", "50"]
    assert main(["estimate", *TASK, *plan, "-v"]) == 0
    out = capsys.readouterr().out
    for words in ("host_comm", "host memory of a node", "offload_activations=100", "host (data"):
        assert words in out


def test_a_waterfall_has_a_bar_for_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", *TASK, "--plan", "micro_batch=2", "--offload-activations"]
    record = answer(capsys, *words)
    bars = {bar["name"]: bar for bar in record["waterfall"]}
    assert bars["host_comm"]["seconds"] > 0
    step = record["plans"][0]["step_seconds"]
    assert sum(bar["seconds"] for bar in bars.values()) == pytest.approx(step)


def test_a_timeline_counts_copies_of_the_optimizer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["timeline", *TASK, "--plan", "pp=2 zero=2", "--software", "megatron-deepspeed-bf16"]
    seconds = answer(capsys, *words, "--offload-optimizer")["seconds"]
    assert seconds["optimizer"] > 0
    assert seconds["host_comm"] >= 0
    assert answer(capsys, *words)["seconds"]["host_comm"] == 0


def test_a_search_keeps_all_on_gpus_unless_told(capsys: pytest.CaptureFixture[str]) -> None:
    plain = answer(capsys, "search", *TASK, *FEW)
    assert plain["plans"]
    assert not any("offload_optimizer" in plan["plan"] for plan in plain["plans"])
    several = answer(capsys, "search", *TASK, *FEW, "--offload-optimizer", "0,100")
    assert several["counts"]["candidates"] == 2 * plain["counts"]["candidates"]
    assert several["plans"][0]["step_seconds"] == plain["plans"][0]["step_seconds"]
    auto = answer(capsys, "search", *TASK, *FEW, "--offload-activations", "auto")
    assert auto["counts"]["candidates"] == 5 * plain["counts"]["candidates"]
    only = answer(capsys, "search", *TASK, *FEW, "--offload-optimizer")
    assert {p["plan"]["offload_optimizer"] for p in only["plans"]} == {100}


def test_plans_with_and_without_the_host_share_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Plan by plan: only some have bytes on the host."""
    file = tmp_path / "plans.csv"
    fixed = ["cp=1", "pp=1", "micro_batch=1", "recompute=none", "zero=1"]
    words = [word for text in fixed for word in ("--fix", text)]
    words += ["--choose", "tp=1,2", "--offload-optimizer", "0,100", "--memory", "62GiB"]
    words += ["--memory-headroom", "10%"]
    answer(capsys, "search", *TASK, *words, "--csv", str(file))
    with file.open(encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    held = [bool(row["host_memory_bytes.total"]) for row in rows]
    assert held == [row["offload_optimizer"] != "0" for row in rows]
    assert set(held) == {True, False}


def test_an_axis_finds_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """At half the memory nothing fits on GPUs alone, and the answer says what the host does."""
    small = [*TASK[:4], "--gpus", "2", *TASK[6:], "--memory", "40GiB"]
    fixed = ["--fix", "recompute=full", "--fix", "tp=2"]
    none = answer(capsys, "search", *small, *fixed, code=3)
    assert any("with offload_optimizer at 100 % it fits: " in line for line in none["infeasible"])
    found = answer(capsys, "search", *small, *fixed, "--offload-optimizer", "auto")
    assert found["plans"][0]["plan"]["offload_optimizer"] > 0


def test_a_host_that_is_too_small_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    from importlib import resources

    text = resources.files("plan3d.hardware_profiles").joinpath("v100-32gb-sxm.toml").read_text()
    own = tmp_path / "small.toml"
    own.write_text(text.replace('value = 512, unit = "GiB"', 'value = 16, unit = "GiB"'))
    task = ["--model", "llama-7b", "--cluster", str(own), "--gpus", "8", "--global-batch", "64"]
    task += ["--precision", "fp16", "--offload-optimizer"]
    assert main(["estimate", *task, "--plan", "tp=8 micro_batch=1", "-v"]) == 0
    assert "DOES NOT FIT ON THE HOST: a node needs" in capsys.readouterr().out
    record = answer(capsys, "search", *task, "--fix", "tp=8", code=3)
    assert record["counts"]["removed"]["host-memory"] > 0
    assert record["infeasible"][0].startswith("no plan fits on its host")
    own.write_text(
        text.replace("[host]", "[gone]").split("[gone]")[0] + "[sources]\n" + _rest(text)
    )
    line = refusal(capsys, "estimate", *task, "--plan", "tp=8 micro_batch=1")
    assert "does not say what its host has" in line


def _rest(text: str) -> str:
    return text.split("[sources]\n")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--offload-optimizer", "150"], "--offload-optimizer '150' must be whole percents"),
        (["--offload-activations", "0.5"], "such as 50, or auto"),
        (["--offload-optimizer", "0,50"], "offload_optimizer=0,50 must be a whole number"),
        (["--offload-optimizer", "auto"], "offload_optimizer=auto must be a whole number"),
    ],
)
def test_no_share_is_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refusal(capsys, "estimate", *TASK, "--plan", "tp=1", *words)


@pytest.mark.parametrize("backend", ["branch-and-bound", "dynamic-programming"])
def test_exact_backends_say_that_they_use_no_host(
    capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    words = ["search", *TASK, "--backend", backend, "--offload-activations", "50"]
    assert "offload_activations" in refusal(capsys, *words)


def test_a_plan_may_not_be_contradicted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plan", "tp=1 offload_optimizer=50", "--offload-optimizer"]
    line = refusal(capsys, "estimate", *TASK, *words)
    assert "--offload-optimizer 100 contradicts the plan" in line
