"""--framework: plans, stack and launch line of one training framework."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from plan3d.cli.main import main
from plan3d.launch_files.registry import EXPORTERS

TASK = ["--model", "llama-3.1-8b", "--cluster", "h100-sxm", "--gpus", "16"]
TASK += ["--sequence", "2048", "--global-batch", "64"]
BERT = ["--model", "gpt3-1.3b", *TASK[2:]]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*arguments, "--json"]) == code
    record: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return record


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that answers bad input."""
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize("name", EXPORTERS)
def test_plan_1_is_exported_by_its_launch_line(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    task = BERT if name == "deepspeed" else TASK
    out = printed(capsys, "search", *task, "--framework", name, "-v")
    assert f"software {EXPORTERS[name].software};" in " ".join(out.split())
    assert f"plans that {EXPORTERS[name].form().title} launches" in " ".join(out.split())
    line = out.partition("Launch it: ")[2].splitlines()[0]
    words = shlex.split(line)
    assert words[words.index("--to") + 1] == name
    assert main(words[1:]) == 0
    assert capsys.readouterr().out.strip()


def test_json_names_the_framework_and_its_stack(capsys: pytest.CaptureFixture[str]) -> None:
    profile = answer(capsys, "search", *TASK, "--framework", "torchtitan")["profile"]
    assert (profile["framework"], profile["software"]) == ("torchtitan", "torchtitan")
    assert "framework" not in answer(capsys, "search", *TASK)["profile"]
    old = ["--framework", "megatron", "--software", "megatron-lm-2021"]
    assert answer(capsys, "search", *TASK, *old)["profile"]["software"] == "megatron-lm-2021"


def test_sweep_and_compare_keep_to_a_framework(capsys: pytest.CaptureFixture[str]) -> None:
    over = ["--over", "framework=megatron,torchtitan"]
    points = answer(capsys, "sweep", *TASK, *over)["points"]
    assert [point["framework"] for point in points] == ["megatron", "torchtitan"]
    for point in points:
        found = answer(capsys, "search", *TASK, "--framework", point["framework"])["plans"][0]
        assert point["step_seconds"] == pytest.approx(found["step_seconds"])
    few = ["--backends", "branch-and-bound", "--framework", "torchtitan"]
    compared = answer(capsys, "compare", *TASK, *few)
    assert compared["optimum"]["step_seconds"] == pytest.approx(points[1]["step_seconds"])
    assert compared["backends"][0]["regret"] == pytest.approx(0.0, abs=1e-9)


def test_explain_offers_only_edits_that_are_launched(capsys: pytest.CaptureFixture[str]) -> None:
    def edits(plan: str, *framework: str) -> set[str]:
        found = answer(capsys, "explain", *TASK, "--plan", plan, *framework)["edits"]
        return {edit["edit"] for edit in found}

    kept = edits("tp=2 pp=4")
    assert kept == edits("tp=2 pp=4", "--framework", "megatron")
    assert not any(edit.startswith("schedule=zb") for edit in kept)
    # A plan that is not launched itself keeps them all.
    assert "schedule=zb-h2" in edits("tp=2 pp=4 schedule=zb-h1")


def test_what_is_asked_for_by_name_is_answered_with_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["search", *TASK, "--fix", "pp=4", "--top", "3", "--all-plans"]
    assert "cannot be launched" not in printed(capsys, *asked)
    out = " ".join(printed(capsys, *asked, "--fix", "schedule=zb-h1").split())
    assert "plans 1 to 3 cannot be launched by Megatron-LM (core 0.16): schedule=zb-h1" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", *TASK, "--framework", "megatrn"], "--framework megatrn is not known; did you "
         "mean megatron"),
        (["search", *TASK, "--framework", "megatron", "--software", "nanotron"],
         "--software nanotron contradicts --framework megatron"),
        (["search", *TASK, "--framework", "nanotron", "--software", "megatron-core"],
         "it is megatron; nearest: --software nanotron"),
        (["search", *TASK, "--framework", "megatron", "--fix", "schedule=zb-h1"],
         "schedule=zb-h1: Megatron-LM (core 0.16) runs 1f1b"),
        (["estimate", *TASK, "--framework", "megatron", "--plan", "tp=2 pp=4 schedule=zb-h1"],
         "nearest: schedule=1f1b"),
        (["estimate", *TASK, "--framework", "nanotron", "--plan", "tp=2 zero=2"],
         "nanotron has ZeRO 0 and 1"),
        (["explain", *TASK, "--framework", "deepspeed", "--plan", "tp=2 virtual_stages=2 pp=2"],
         "runs one chunk a rank"),
        (["search", *BERT, "--framework", "torchtitan"], "plan3d does not write LayerNorm"),
        (["search", *TASK, "--framework", "megatron", "--backend", "dynamic-programming"],
         "which no framework launches"),
        (["search", *TASK, "--framework", "megatron", "--space", "staged", "--backend", "random"],
         "--space staged has stages that differ"),
        (["sweep", *TASK, "--over", "software=nanotron", "--framework", "megatron"],
         "--software nanotron contradicts --framework megatron"),
    ],
)  # fmt: skip
def test_bad_input_gives_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refused(capsys, *words)
