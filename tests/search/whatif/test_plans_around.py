"""Plans of searches nearby: of every batch, with every family's frontier, and what ends them."""

from dataclasses import replace

import numpy as np
import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.whatif.plans_around import MEMORY, _spaced, plans_around
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import families
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8), sequence=2048, global_batch=64
)
CHOOSE = {"micro_batch": [1], "cp": [1]}
RANKING = Ranking(choose=CHOOSE, families=True, frontier=True)


@pytest.fixture(scope="module")
def result():
    return rank_plans(TASK, RANKING)


def test_under_any_memory_one_of_each_family_is_as_fast_as_the_search_to_a_hundredth(result):
    (_, here, _) = plans_around(result, RANKING).batches
    assert here.plans.rows < 200
    costs, every = simulate(TASK, here.plans), result.of_families
    for limit in np.geomspace(every.memory_total.min(), MEMORY * result.limit, 20):
        for family in np.unique(families(every.plans)):
            true = every.step[(families(every.plans) == family) & (every.memory_total <= limit)]
            mine = costs.step[(families(here.plans) == family) & (costs.memory_total <= limit)]
            if true.size and true.min() < 3 * result.costs.step[0]:
                assert mine.min() <= 1.01 * true.min()


def test_the_slowest_that_is_asked_for_is_kept(result):
    """As slow as plan 1: plan 1 alone, or what is as fast."""
    best = result.of_families.step.min()
    assert (_spaced(result.of_families, best).step == best).all()
    assert _spaced(result.of_families, best).plans.rows >= 1
    assert _spaced(result.of_families, best * (1 - 1e-9)).plans.rows == 0


def test_each_batch_is_searched_and_the_answer_comes_first(result):
    around = plans_around(result, RANKING)
    assert [batch.task.global_batch for batch in around.batches] == [32, 64, 128]
    assert [batch.listed for batch in around.batches] == [0, len(result.plans), 0]
    first = around.batches[1].plans.take(slice(0, len(result.plans)))
    assert list(map(str, first)) == list(map(str, result.plans))
    assert sorted(around.batches[1].simple) == list(range(around.batches[1].plans.rows))


@pytest.mark.parametrize("limit", [{"time_limit": 10.0}, {"budget": 10**6}])
def test_a_limited_search_has_its_own_plans_alone(result, limit):
    around = plans_around(result, replace(RANKING, **limit))
    assert not around.searched
    assert [batch.plans.rows for batch in around.batches] == [len(result.plans)]


def test_ctrl_c_leaves_the_answer(result):
    def interrupt(costed):
        raise KeyboardInterrupt

    around = plans_around(result, replace(RANKING, progress=interrupt))
    assert around.interrupted
    assert [batch.listed for batch in around.batches] == [len(result.plans)]


def test_where_nothing_fits_there_is_nothing(result):
    found = rank_plans(
        TASK, Ranking(choose={"tp": [1], "pp": [1], "micro_batch": [64]}, families=True)
    )
    assert found.costs is None
    assert plans_around(found, RANKING).batches == []
