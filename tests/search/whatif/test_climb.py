"""Climbing: what a search kept fixed is changed where that makes its plans faster."""

import pytest

from plan3d.search.find_plans import find_plans
from plan3d.search.whatif.climb import WORTH, climbed
from plan3d.search.whatif.single_field_changes import single_edits
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


@pytest.fixture(scope="module")
def large_head():
    cluster = Cluster.profile("h100-sxm", gpus=8)
    return Task(Model.preset("llama-3.1-8b"), cluster, sequence=4096, global_batch=64)


CHOOSE = {"pp": [8], "virtual_stages": [1], "micro_batch": [1]}
"""Eight stages, of which the last also holds the head of a large vocabulary."""


def test_a_change_that_is_made_is_found_by_a_search_that_may_choose_it(large_head):
    result = find_plans(large_head, choose=CHOOSE, families=True)
    top = climbed(result, CHOOSE)
    assert top.climbed
    assert top.best.step_seconds < result.best.step_seconds * (1 - WORTH)
    assert top.best.step_seconds == pytest.approx(top.climbed[-1].step_seconds)
    opened = {gain.field: [gain.kept, gain.value] for gain in top.climbed}
    again = find_plans(large_head, choose={**CHOOSE, **opened})
    assert again.best.step_seconds <= top.best.step_seconds * (1 + 1e-12)
    assert top.counts.changes >= len(top.climbed)
    assert result.counts.changes == 0


def test_no_single_change_of_a_kept_field_saves_a_hundredth_any_more(large_head):
    top = climbed(find_plans(large_head, choose=CHOOSE, families=True), CHOOSE)
    edits = single_edits(top.best, {gain.field for gain in top.climbed})
    open_to = edits.costs.memory_total <= top.limit
    assert (edits.costs.step[open_to] >= top.best.step_seconds * (1 - WORTH)).all()


def test_each_gain_follows_from_the_one_before(large_head):
    result = find_plans(large_head, choose=CHOOSE, families=True)
    top = climbed(result, CHOOSE)
    step = result.best.step_seconds
    for gain in top.climbed:
        assert gain.step_change == pytest.approx(gain.step_seconds / step - 1)
        assert gain.step_change < -WORTH
        step = gain.step_seconds


def test_a_field_that_the_user_fixed_stays(large_head):
    choose = {**CHOOSE, "last_stage_layers": [0]}
    top = climbed(find_plans(large_head, choose=choose, families=True), choose)
    assert "last_stage_layers" not in [gain.field for gain in top.climbed]
    assert top.plans[0].last_stage_layers == 0


def test_only_a_search_by_time_climbs(large_head):
    result = find_plans(large_head, choose=CHOOSE, objective="memory")
    assert climbed(result, CHOOSE) is result
