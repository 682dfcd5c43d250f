"""Plans ranked by a quantile of their forecast step."""

from __future__ import annotations

import json

import numpy as np
import pytest

from plan3d.cli.main import main
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.at_risk import SHORT_LIST
from plan3d.search.whatif.climb import climbed, improved
from plan3d.search.whatif.cluster_size import find_cluster
from plan3d.simulator.analysis.goodput import Training
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import concat
from plan3d.simulator.step.costs import concat_costs
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.forecast import Forecast
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=32), sequence=2048, global_batch=64
)
CHOOSE = {"precision": ["bf16", "fp8"], "ep": [1]}
"""Steps below 16 bits are less certain, so that the order depends on the quantile."""


@pytest.fixture(scope="module")
def expected():
    return rank_plans(TASK, Ranking(choose=CHOOSE, top=SHORT_LIST))


@pytest.mark.parametrize("risk", [0.05, 0.95])
def test_the_quantile_orders_the_short_list(expected, risk):
    found = rank_plans(TASK, Ranking(choose=CHOOSE, risk=risk, top=5))
    table = concat([plan.table() for plan in expected.plans])
    quantiles = np.sort(Forecast.of_plans(TASK, table).quantile(risk))
    ranked = Forecast.of_plans(TASK, found.costs.plans).quantile(risk)
    assert ranked == pytest.approx(quantiles[:5], rel=1e-9)
    assert found.risk == risk


def test_a_plan_that_is_surely_fast_goes_before_one_that_may_be(expected):
    """Of the quick 8-bit plans fewer are left at a high quantile than at a low one."""
    hopeful, careful = (
        rank_plans(TASK, Ranking(choose=CHOOSE, risk=risk, top=120)).costs.plans.precision
        for risk in (0.01, 0.99)
    )
    usual = expected.costs.plans.precision[:120]
    low = usual.max()
    counts = [np.count_nonzero(codes == low) for codes in (hopeful, usual, careful)]
    assert counts[0] >= counts[1] >= counts[2]
    assert counts[0] > counts[2]


def test_the_median_is_the_expected_order(expected):
    found = rank_plans(TASK, Ranking(choose=CHOOSE, risk=0.5, top=20))
    assert [*map(str, found.plans)] == [*map(str, expected.plans[:20])]


def test_a_quantile_holds_its_share():
    """The 80 % interval ends at the quantiles 0.1 and 0.9."""
    forecast = Forecast.of_plans(TASK, rank_plans(TASK, Ranking(top=3)).costs.plans)
    low, high = forecast.interval(0.8)
    assert forecast.quantile(0.1) == pytest.approx(low)
    assert forecast.quantile(0.9) == pytest.approx(high)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"risk": 1.0}, "below 1"),
        ({"risk": 0.9, "objective": "memory"}, "does not hold the step"),
        ({"risk": 0.9, "backend": "branch-and-bound"}, "ranks by the expected step"),
    ],
)
def test_where_it_cannot_act_it_is_refused(options, why):
    with pytest.raises(InputError, match=why):
        rank_plans(TASK, Ranking(**options))
    with pytest.raises(InputError, match="does not go with days"):
        find_cluster(TASK, Training(tokens=1e9, days=1), Ranking(risk=0.9))


def test_the_command_says_what_ranked(capsys):
    asked = ["search", "--model", "llama-7b", "--cluster", "h100-sxm", "--gpus", "32"]
    assert main([*asked, "--global-batch", "64", "--risk", "0.9", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    seconds = [plan["step_seconds_at_risk"] for plan in answer["plans"]]
    assert answer["risk"] == 0.9
    assert seconds == sorted(seconds)
    assert seconds[0] > answer["plans"][0]["step_seconds"]


def test_climbed_plans_are_ranked_at_risk_too():
    """What a search keeps fixed (the layers of the end stages) is changed before plans are ranked:
    the first is no worse at its quantile than the default answer, which the list holds."""
    cluster = Cluster.profile("b200", gpus=16)
    moe = Task(Model.preset("qwen3-30b-a3b"), cluster, sequence=4096, global_batch=64)
    found = rank_plans(moe, Ranking(risk=0.9))
    ranked = improved(found, moe, Ranking(risk=0.9, top=5))
    sure = Ranking(families=True, fits_probability=0.9)
    default = climbed(rank_plans(moe, sure), (), 5)
    assert len(ranked.plans) == 5
    assert len({str(plan) for plan in ranked.plans}) == 5
    quantiles = Forecast.of_plans(moe, concat_costs([ranked.costs, default.costs]).plans).quantile(
        0.9
    )
    assert quantiles[0] <= quantiles.min() * (1 + 1e-12)
    assert found.counts.changes < ranked.counts.changes == default.counts.changes
