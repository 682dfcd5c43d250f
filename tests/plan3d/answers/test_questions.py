"""The questions of Python: what they take, what they say of mistakes, how their answers print."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plan3d import (
    Adapters,
    Cluster,
    InputError,
    Model,
    Plan,
    Task,
    calibrated,
    compare_backends,
    compare_systems,
    evaluate,
    explain,
    find_cluster,
    find_plans,
    sweep,
)
from plan3d.cli.main import main
from plan3d.search.rank_plans import Ranking, RankingOptions
from plan3d.search.whatif.backend_benchmark import BackendsRequest
from plan3d.search.whatif.compare_systems import SystemsRequest

MODEL, CLUSTER = Model.preset("gpt3-1.3b"), Cluster.profile("a100-80gb-sxm", gpus=8)
SIZES: dict[str, Any] = {"sequence": 2048, "global_batch": 64}
TASK = Task(MODEL, CLUSTER, **SIZES)
ANY: Any = None
"""What no annotation allows."""


def test_a_model_may_be_the_name_of_a_preset() -> None:
    named: Any = "gpt3-1.3b"
    assert Task(named, CLUSTER, **SIZES) == TASK


@pytest.mark.parametrize("plan", [{"tp": 2, "recompute": "full"}, Plan(tp=2, pp=2).to_dict()])
def test_a_plan_may_be_its_fields(plan: dict[str, Any]) -> None:
    said = evaluate(TASK, plan)
    assert said.plans.tp == 2
    assert said.step_seconds == evaluate(TASK, Plan(**plan)).step_seconds
    assert explain(TASK, plan).costs.step_seconds == said.step_seconds


def test_a_plan_of_a_saved_result_is_its_fields() -> None:
    layout = evaluate(TASK, "pp=2 layers_per_stage=11,13").plans.to_dict()
    again = evaluate(TASK, {**layout, "micro_batches": 64}).plans
    assert again.layers_per_stage == (11, 13)


def test_changes_of_a_plan_may_be_fields() -> None:
    texts, fields = (explain(TASK, "tp=2", against=x).against for x in ("tp=4", {"tp": 4}))
    assert texts
    assert fields
    assert str(texts.plan) == str(fields.plan)


def test_counts_may_have_suffixes() -> None:
    asked: dict[str, Any] = {"days": 60, "choose": {"tp": [1]}}
    found = [find_cluster(TASK, tokens=n, **asked) for n in ("300B", 3e11)]
    assert found[0].task.gpus == found[1].task.gpus
    rows = [sweep(TASK, {"tp": [1]}, plan="pp=1", tokens=n, price=2).rows for n in ("2T", 2e12)]
    assert rows[0] == rows[1]


def test_a_calibration_may_be_its_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.toml"):
        calibrated(TASK, str(tmp_path / "absent.toml"))


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda: Task(ANY, CLUSTER, **SIZES),
            "model must be of type Model, not None; pass Model.preset(",
        ),
        (lambda: Task("gpt3-1.3", CLUSTER, **SIZES), "did you mean gpt3-1.3b"),
        (
            lambda: Task(MODEL, "h100-sxm", **SIZES),
            "cluster must be of type Cluster, not 'h100-sxm'; pass Cluster.profile('h100-sxm', gpu",
        ),
        (lambda: Task(MODEL, ANY, **SIZES), "pass Cluster.profile('h100-sxm', gpus=...)"),
        (
            lambda: Task(MODEL, CLUSTER, adapters="lora", **SIZES),
            "adapters must be of type Adapters, not 'lora'; pass Adapters()",
        ),
        (lambda: evaluate(TASK, ANY), "a plan must be a Plan, its text or a dict of its fields"),
        (lambda: evaluate(TASK, {"tq": 2}), "unknown plan field 'tq'"),
        (lambda: evaluate(TASK, {"tp": "two"}), "two"),
        (lambda: evaluate("gpt3-1.3b", "tp=2"), "task must be of type Task, not 'gpt3-1.3b'"),
        (lambda: explain(TASK, 2), "a plan must be a Plan"),
        (lambda: find_plans("gpt3-1.3b"), "task must be of type Task, not 'gpt3-1.3b'"),
        (lambda: find_plans(TASK, choose={"tp": [3]}), "tensor size 3 does not divide"),
        (lambda: find_plans(TASK, choose={"tp": 2}), "the values of tp must be a list, such as"),
        (lambda: find_plans(TASK, choose="tp=2"), "choose must be a dict of lists, such as"),
        (lambda: sweep(TASK, {"tp": 2}), "the values of tp must be a list, such as [2]"),
        (lambda: sweep(TASK, {"gpus": 8}), "the values of gpus must be a list, such as [8]"),
        (lambda: sweep(TASK, "tp"), "over must be a dict of lists, such as"),
        (lambda: sweep(TASK, {"tp": [1]}, plan=2), "a plan must be a Plan"),
        (lambda: sweep(TASK, {"tp": [1]}, tokens=-1), "tokens must be a number above 0, not -1"),
        (lambda: find_cluster(TASK, tokens="many", days=1), "tokens 'many' needs a number"),
        (lambda: find_cluster(TASK, tokens=1e12, days=0), "days must be a number above 0"),
        (
            lambda: calibrated(TASK, 3),
            "calibration must be of type Calibration, not 3; pass the path of",
        ),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_pass(ask: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        ask()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("public", "record"),
    [
        (find_plans, Ranking),
        (find_cluster, Ranking),
        (compare_backends, BackendsRequest),
        (compare_systems, SystemsRequest),
    ],
)
def test_signatures_show_the_fields_of_the_record(
    public: Callable[..., Any], record: type[Any]
) -> None:
    shown = inspect.signature(public).parameters
    fields = inspect.signature(record).parameters
    assert set(fields) <= set(shown)
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in shown.values())
    for name in set(fields) - {"families"}:
        assert shown[name].default == fields[name].default, name


def test_keywords_of_a_ranking_are_its_fields() -> None:
    keywords = set(RankingOptions.__annotations__)
    assert keywords == set(inspect.signature(Ranking).parameters) - {"families"}


@pytest.mark.parametrize(
    "name", [n for n in inspect.signature(find_plans).parameters if n != "task"]
)
def test_every_keyword_is_explained(name: str) -> None:
    assert f"`{name}`" in (find_plans.__doc__ or "")


def test_plans_at_risk_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gpt3-1.3b", "a100-80gb-sxm", "8", "--sequence", "2048", "--global-batch", "64"]
    assert main(["search", *words, "--risk", "0.9", "--top", "4", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["plans"]
    found = find_plans(TASK, risk=0.9, top=4)
    assert found.costs.step.tolist() == pytest.approx([one["step_seconds"] for one in listed])


def test_printed_results_are_short_tables() -> None:
    for found in (find_plans(TASK), find_plans(TASK, families=False, top=40)):
        lines = str(found).splitlines()
        assert 3 < len(lines) <= 20
        assert "gpt3-1.3b on 8 x A100-80GB-SXM4" in lines[0]
        assert f"{found.costs.step[0]:.4g}" in lines[2]
        assert "\n" not in repr(found)
    assert "30 more" in str(found)


def test_a_result_without_plans_says_why() -> None:
    large = Task(Model.preset("llama-3.1-405b"), CLUSTER, **SIZES)
    assert "no plan fits: the smallest (" in str(find_plans(large))
    none = find_plans(TASK, choose={"tp": [3, 5]})
    assert "no legal plan with tp=3,5: tensor size 3 does not divide" in str(none)
    assert "none is legal" in repr(none)


def test_printed_sweeps_are_short_tables() -> None:
    over = {"global_batch": [8 * n for n in range(1, 41)]}
    lines = str(sweep(TASK, over, plan="tp=2")).splitlines()
    assert len(lines) <= 20
    assert lines[0].split()[:3] == ["global_batch", "step", "s"]
    assert lines[-1].startswith("... and ")
    odd = str(sweep(TASK, {"tp": [2, 3]}, plan="pp=1"))
    assert "tensor size 3 does not divide" in odd


def test_a_task_with_adapters_is_a_task() -> None:
    assert Task(MODEL, CLUSTER, adapters=Adapters(), **SIZES).adapters == Adapters()
