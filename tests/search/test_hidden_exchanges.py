"""Exchanges of experts are not hidden beside what wants the same hardware queue."""

from __future__ import annotations

import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.whatif.climb import climbed
from plan3d.search.whatif.single_field_changes import single_edits
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

BOTH = "tp=2 pp=2 ep=4 virtual_stages=2 overlap_tp=1 overlap_ep=1"
CHOICE = {"micro_batch": [1], "recompute": [0], "zero": [1], "virtual_stages": [2], "pp": [2]}


def question(cluster: str) -> Task:
    model = Model.preset("mixtral-8x7b")
    return Task(model, Cluster.profile(cluster, gpus=32), sequence=4096, global_batch=256)


def clash(plan: Plan) -> bool:
    return bool(plan.overlap_ep and (plan.tp > 1 or plan.cp > 1))


@pytest.mark.parametrize("backend", ["exhaustive", "branch-and-bound", "dynamic-programming"])
def test_no_search_proposes_both_before_blackwell(backend: str) -> None:
    """tp = 2 or cp = 2: one of them hides, whichever is faster."""
    for degree in ({"tp": [2], "cp": [1]}, {"tp": [1], "cp": [2]}):
        choose = {**CHOICE, **degree, "pp": [4], "ep": [8]}
        found = rank_plans(question("h100-sxm"), Ranking(backend=backend, choose=choose, top=20))
        assert found.plans
        assert not any(map(clash, found.plans))


def test_blackwell_has_queues_for_both() -> None:
    choose = {**CHOICE, "tp": [2], "ep": [4]}
    assert clash(rank_plans(question("b200"), Ranking(choose=choose)).plans[0])


def test_what_is_asked_for_by_name_is_costed() -> None:
    """Megatron-LM runs it, with a warning."""
    choose = {**CHOICE, "tp": [2], "ep": [4], "overlap_ep": [1], "overlap_tp": [1]}
    assert clash(rank_plans(question("h100-sxm"), Ranking(choose=choose)).plans[0])


def test_no_edit_leads_there_but_from_such_a_plan() -> None:
    task = question("h100-sxm")
    alone = "pp=2 ep=4 virtual_stages=2 overlap_ep=1"
    edits = single_edits(evaluate(task, resolve(Plan.parse(alone), 32)))
    assert edits.costs is not None
    assert not any(map(clash, edits.costs.plans))
    both = single_edits(evaluate(task, resolve(Plan.parse(BOTH), 32)))
    assert both.costs is not None
    assert any(map(clash, both.costs.plans))
    found = rank_plans(task, Ranking(families=True))
    assert not any(map(clash, climbed(found, (), 10).plans))
