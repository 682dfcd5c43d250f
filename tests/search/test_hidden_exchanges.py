"""Exchanges of experts hide beside tensor and context parallelism: Megatron-LM launches both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.whatif.climb import improved
from plan3d.search.whatif.single_field_changes import single_edits
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

CHOICE = {"micro_batch": [1], "recompute": [0], "zero": [1], "virtual_stages": [2], "pp": [2]}


def question(cluster: str) -> Task:
    model = Model.preset("mixtral-8x7b")
    return Task(model, Cluster.profile(cluster, gpus=32), sequence=4096, global_batch=256)


def both(plan: Plan) -> bool:
    return bool(plan.overlap_ep and (plan.tp > 1 or plan.cp > 1))


@pytest.mark.parametrize("backend", ["exhaustive", "branch-and-bound", "dynamic-programming"])
@pytest.mark.parametrize("degree", [{"tp": [2], "cp": [1]}, {"tp": [1], "cp": [2]}])
def test_every_search_proposes_what_launches(backend: str, degree: dict[str, list[int]]) -> None:
    choose = {**CHOICE, **degree, "pp": [4], "ep": [8]}
    found = rank_plans(question("h100-sxm"), Ranking(backend=backend, choose=choose, top=20))
    assert both(found.plans[0])


def test_a_single_change_leads_there() -> None:
    alone = "tp=2 pp=2 ep=4 virtual_stages=2"
    edits = single_edits(evaluate(question("h100-sxm"), resolve(Plan.parse(alone), 32)))
    assert edits.costs is not None
    assert any(map(both, edits.costs.plans))


@pytest.mark.parametrize("asked", [{}, {"overlap_tp": [1], "overlap_ep": [1]}])
def test_one_of_two_overlaps_is_proposed_where_one_hides(asked: dict[str, list[int]]) -> None:
    """Before Blackwell; both by name are costed, as the same step."""
    choose = {**CHOICE, "tp": [2], "ep": [4], **asked}
    task = question("h100-sxm")
    found = improved(rank_plans(task, Ranking(choose=choose)), task, Ranking(choose=choose))
    plan = found.plans[0]
    assert (plan.overlap_tp, plan.overlap_ep) == ((1, 1) if asked else (0, 1))
    other = replace(plan, overlap_tp=1 - plan.overlap_tp)
    assert evaluate(task, other).step_seconds == found.best.step_seconds
