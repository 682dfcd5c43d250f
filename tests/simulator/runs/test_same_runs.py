"""Published runs of the very plan that is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.runs.same_runs import SameRun, fastest_run, same_runs, sentence
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.model import Model

GPT = Task(
    Model.preset("gpt3-175b"),
    Cluster.profile("h100-sxm", gpus=256),
    sequence=2048,
    global_batch=512,
)
PLAN = "tp=4 pp=8 virtual_stages=12 micro_batch=1"


def found_of(task: Task, text: str) -> tuple[list[SameRun], float]:
    """The runs of a plan, and the step that is predicted."""
    costs = evaluate(task, Plan.parse(text)).row()
    step, precision = float(costs.step_seconds), number_format(costs.plans)
    return same_runs(task, costs.plans.take(0), precision, step), step


def test_releases_of_one_plan_stand_beside_each_other() -> None:
    """NVIDIA's recipe of 24.11 and of 25.02: 8.95 and 8.408 s in 16 bits, 5.96 and 5.725 in 8."""
    found, step = found_of(GPT, PLAN)
    assert [(one.step_seconds, one.version.split()[-1]) for one in found] == [
        (8.408, "v25.02.02"),
        (8.95, "v24.11.1"),
    ]
    assert [one.predicted_share for one in found] == [
        pytest.approx(step / seconds) for seconds in (8.408, 8.95)
    ]
    scaled, _ = found_of(GPT, f"{PLAN} precision=fp8")
    assert [one.step_seconds for one in scaled] == [5.725, 5.96]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "tp=8 pp=8 micro_batch=1"),
        ({}, PLAN.replace("virtual_stages=12", "virtual_stages=6")),
        ({}, f"{PLAN} recompute=full"),
        ({"global_batch": 1024}, PLAN),
        ({"model": Model.preset("gpt3-13b")}, "tp=4 pp=8 micro_batch=1"),
        ({"adapters": Adapters()}, PLAN),
    ],
)
def test_another_plan_or_question_has_none(changes: dict[str, object], text: str) -> None:
    assert found_of(replace(GPT, **changes), text)[0] == []


def test_a_sentence_names_three_and_says_how_much_is_predicted() -> None:
    def one(seconds: float) -> SameRun:
        return SameRun("r", "Source 2025", f"v{seconds:g}", seconds, 9 / seconds)

    assert sentence([one(10.0)]) == "this plan took 10 s (v10); predicted 90 % of that"
    assert sentence([one(s) for s in (10.0, 12.0, 15.0, 18.0)]) == (
        "this plan took 10 s (v10), 12 s (v12), 15 s (v15) and 1 more; predicted 50 to 90 % of that"
    )


def test_the_fastest_run_of_a_question_is_evidence_on_its_stack_alone() -> None:
    run = fastest_run(GPT, "bf16")
    assert run is not None
    assert (run.step_seconds, run.version.split()[-1]) == (8.408, "v25.02.02")
    assert str(run.plan).startswith("tp=4 pp=8 dp=8 virtual_stages=12")
    assert fastest_run(replace(GPT, software=software_profile("nanotron")), "bf16") is None
    assert fastest_run(replace(GPT, global_batch=513), "bf16") is None


def test_a_run_states_its_gradients_where_its_framework_can() -> None:
    """NVIDIA's 8B recipe exchanges gradients in 16 bits, and so keeps them in 16 bits."""
    llama = Task(
        Model.preset("llama-3.1-8b"),
        Cluster.profile("h100-sxm", gpus=8),
        sequence=8192,
        global_batch=128,
    )
    run = fastest_run(llama, "bf16")
    assert run is not None
    assert str(run.plan) == "dp=4 cp=2 grad_reduce_dtype=bf16"
    assert run.kept_as_planned
    usual, narrow = (evaluate(llama, Plan.parse(text)) for text in ("dp=4 cp=2", str(run.plan)))
    # Two bytes of each of its 8.03 G parameters fewer, and fp32 copies of a rank's eighth more.
    saved = usual.memory_bytes - narrow.memory_bytes
    assert saved > 8.03e9
    other = fastest_run(
        replace(llama, software=replace(llama.software, optimizer_memory=6.0)), "bf16"
    )
    assert other is not None
    assert not other.kept_as_planned
