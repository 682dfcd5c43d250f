"""Fields that a search kept fixed: what they would gain, and that the option said searches them."""

import pytest

from plan3d.search.beyond import gains, sentence
from plan3d.search.finder import find_plans
from plan3d.simulator.hardware import Cluster
from plan3d.simulator.model import Model
from plan3d.simulator.task import Task


@pytest.fixture(scope="module")
def mixture():
    cluster = Cluster.profile("h100-sxm", gpus=64)
    return Task(Model.preset("mixtral-8x7b"), cluster, sequence=4096, global_batch=256)


CHOOSE = {"tp": [1, 2], "cp": [1], "micro_batch": [1]}


def test_what_is_named_is_found_by_the_option_that_is_said(mixture):
    result = find_plans(mixture, choose=CHOOSE)
    found = gains(result, CHOOSE)
    assert "overlap_ep" in [gain.field for gain in found]
    assert found == sorted(found, key=lambda gain: gain.step_seconds)
    for gain in found:
        assert gain.choose in sentence(found)
        name, _, values = gain.choose.removeprefix("--choose ").partition("=")
        again = find_plans(mixture, choose={**CHOOSE, name: values.split(",")})
        assert again.best.step_seconds <= gain.step_seconds * (1 + 1e-12)
        assert gain.step_seconds < result.best.step_seconds * 0.99


def test_a_field_that_the_user_fixed_is_not_offered(mixture):
    choose = {**CHOOSE, "overlap_ep": [0]}
    result = find_plans(mixture, choose=choose)
    assert "overlap_ep" not in [gain.field for gain in gains(result, choose)]


def test_only_a_search_by_time_is_told(mixture):
    result = find_plans(mixture, choose=CHOOSE, objective="memory")
    assert gains(result, CHOOSE) == []
