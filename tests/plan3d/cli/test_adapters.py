"""--adapter and --lora-...: what they change, what saved results keep of them, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from plan3d import Adapters, Cluster, Model, Plan, Task, evaluate, find_plans
from plan3d.cli.main import main

TASK = ["--model", "llama-7b", "--cluster", "a100-80gb-sxm", "--gpus", "2"]
PLAN = ["--plan", "recompute=full zero=3"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    out: dict[str, Any] = json.loads(capsys.readouterr().out)
    return out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    return err


def test_an_adapter_is_part_of_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    asked = answer(capsys, "estimate", *TASK, *PLAN, "--adapter", "qlora", "--lora-rank", "8")
    task = asked["task"]
    assert task["adapter"] == "qlora"
    assert (task["lora_rank"], task["lora_targets"]) == (8, "q,k,v,o")
    assert (task["lora_base"], task["trained_parameters"]) == ("nf4-dq", 8_388_608)
    assert (task["sequence"], task["global_batch"]) == (2048, 64)
    assert asked["profile"]["software"] == "hf-trainer"
    assert asked["nearest_run"] is None


def test_a_dropout_before_adapters_takes_time_and_memory_and_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*TASK, *PLAN, "--adapter", "lora", "--lora-dropout")
    plain, dropped = (answer(capsys, "estimate", *words, share) for share in ("0", "0.05"))
    assert "lora_dropout" not in plain["task"]
    assert dropped["task"]["lora_dropout"] == 0.05
    before, after = plain["plans"][0], dropped["plans"][0]
    assert after["step_seconds"] > before["step_seconds"]
    assert sum(after["memory_bytes"].values()) > sum(before["memory_bytes"].values())
    assert main(["estimate", *words, "0.05", "-v"]) == 0
    assert "on q k v o behind a dropout of 0.05" in capsys.readouterr().out
    said = refused(capsys, "estimate", *words, "1")
    assert "--lora-dropout '1' must be a number from 0 to below 1" in said


def asked_in_python(**changes: Any) -> Task:
    model, cluster = Model.preset("llama-7b"), Cluster.profile("a100-80gb-sxm", gpus=2)
    return Task(
        model, cluster, sequence=2048, global_batch=64, adapters=Adapters(base="nf4-dq"), **changes
    )


@pytest.mark.parametrize("software", [None, "megatron-core", "torchtitan"])
def test_python_gives_the_same_numbers(
    software: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    task = asked_in_python(**({"software": software} if software else {}))
    words = [*TASK, "--adapter", "qlora", *(("--software", software) if software else ())]
    plan = evaluate(task, Plan(dp=2, zero=3, recompute="full"))
    assert task.software.name == (software or "hf-trainer")
    assert plan.step_seconds == pytest.approx(
        answer(capsys, "estimate", *words, *PLAN)["plans"][0]["step_seconds"]
    )
    best = answer(capsys, "search", *words, "--top", "1")["plans"][0]
    assert find_plans(task, top=1).best.step_seconds == pytest.approx(best["step_seconds"])


def test_a_task_names_its_adapters() -> None:
    said = repr(asked_in_python())
    assert "adapters=Adapters(rank=16, targets=('q', 'k', 'v', 'o'), base='nf4-dq'" in said
    assert "software='hf-trainer'" in said
    assert len(said) <= 400


@pytest.mark.parametrize("verb", ["estimate", "explain", "timeline"])
def test_every_option_changes_the_answer(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    several = [
        (),
        ("--adapter", "lora"),
        ("--adapter", "qlora"),
        ("--adapter", "lora", "--lora-rank", "128"),
        ("--adapter", "lora", "--lora-targets", "q_proj,v_proj"),
        ("--adapter", "qlora", "--lora-base", "int8"),
    ]
    same = ["--sequence", "1024", "--global-batch", "8", "--software", "torchtitan"]
    steps = []
    for words in several if verb != "explain" else several[::2]:
        found = answer(capsys, verb, *TASK, *PLAN, *same, *words)
        steps.append(
            found["step_seconds"] if verb == "timeline" else found["plans"][0]["step_seconds"]
        )
    assert len(set(steps)) == len(steps) > 2


def test_a_saved_answer_knows_its_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "search", *TASK, "--adapter", "lora", "--top", "1")
    saved = tmp_path / "result.json"
    saved.write_text(json.dumps(found), encoding="utf-8")
    why = refused(capsys, "export", f"{saved}#1", "--to", "torchtitan")
    assert "its launch files train all weights, not adapters" in why


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--lora-rank", "8"), "--lora-rank needs --adapter lora or --adapter qlora"),
        (("--adapter", "qlore"), "unknown adapter 'qlore'; did you mean qlora"),
        (("--adapter", "lora", "--lora-base", "nf4"), "contradicts --lora-base nf4: that is qlora"),
        (("--adapter", "lora", "--framework", "megatron"), "train all weights, not adapters"),
        (("--adapter", "lora", "--lora-targets", "attn"), "unknown LoRA target 'attn'"),
        (("--adapter", "lora", "--global-batch", "0"), "global_batch must be a whole number"),
    ],
)
def test_contradictions_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "estimate", *TASK, *PLAN, *words)


@pytest.mark.parametrize(
    "words", [("--backend", "branch-and-bound"), ("--backend", "random", "--space", "staged")]
)
def test_searches_that_do_not_know_frozen_weights_say_so(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    why = refused(capsys, "search", *TASK, "--adapter", "lora", *words)
    assert "does not know frozen weights; nearest: --backend exhaustive" in why
