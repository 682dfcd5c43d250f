"""Fields that a search kept fixed: what they would gain, and that the option said searches them."""

import pytest

from plan3d.search.find_plans import find_plans
from plan3d.search.whatif.unsearched_gains import gains, sentence
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


@pytest.fixture(scope="module")
def large_head():
    cluster = Cluster.profile("h100-sxm", gpus=8)
    return Task(Model.preset("llama-3.1-8b"), cluster, sequence=4096, global_batch=64)


CHOOSE = {"pp": [8], "virtual_stages": [1], "micro_batch": [1]}
"""Eight stages, of which the last also holds the head of a large vocabulary."""


def test_what_is_named_is_found_by_the_option_that_is_said(large_head):
    result = find_plans(large_head, choose=CHOOSE)
    found = gains(result, CHOOSE)
    assert "last_stage_layers" in [gain.field for gain in found]
    assert found == sorted(found, key=lambda gain: gain.step_seconds)
    for gain in found:
        assert gain.choose in sentence(found)
        name, _, values = gain.choose.removeprefix("--choose ").partition("=")
        again = find_plans(large_head, choose={**CHOOSE, name: values.split(",")})
        assert again.best.step_seconds <= gain.step_seconds * (1 + 1e-12)
        assert gain.step_seconds < result.best.step_seconds * 0.99


def test_a_field_that_the_user_fixed_is_not_offered(large_head):
    choose = {**CHOOSE, "last_stage_layers": [0]}
    result = find_plans(large_head, choose=choose)
    assert "last_stage_layers" not in [gain.field for gain in gains(result, choose)]


def test_only_a_search_by_time_is_told(large_head):
    result = find_plans(large_head, choose=CHOOSE, objective="memory")
    assert gains(result, CHOOSE) == []
