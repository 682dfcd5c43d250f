"""What a fuller plan would bring is told where it brings something."""

from __future__ import annotations

import pytest

from plan3d.search.rank_plans import DEFAULT_HEADROOM, Ranking, rank_plans
from plan3d.search.whatif.at_the_edge import at_the_edge
from plan3d.search.whatif.single_field_changes import WORTH
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import FITS_PROBABILITY, fitting_bytes, probability_fits
from plan3d.simulator.workload.model import Model


def task(memory: float | None = None) -> Task:
    own = {} if memory is None else {"memory": memory}
    cluster = Cluster.profile("h100-sxm", gpus=64, **own)
    return Task(Model.preset("llama-3.1-8b"), cluster, sequence=8192, global_batch=512)


def test_a_search_ranks_plans_that_fit_and_a_fuller_one_is_faster() -> None:
    found = rank_plans(task(60e9), Ranking(families=True))
    assert found.limit == fitting_bytes(found.task, (0,))
    assert found.costs is not None
    assert probability_fits(found.costs).min() >= FITS_PROBABILITY
    edge = at_the_edge(found, Ranking())
    assert edge is not None
    assert edge.step_seconds < found.costs.step[0] * (1 - WORTH)
    assert found.limit < edge.memory_bytes <= (1 - DEFAULT_HEADROOM) * edge.capacity
    assert found.edge_seconds <= edge.step_seconds


def test_nothing_is_told_with_a_headroom_of_the_user_or_with_much_memory() -> None:
    assert at_the_edge(rank_plans(task(), Ranking(families=True)), Ranking(headroom=0.1)) is None
    assert at_the_edge(rank_plans(task(800e9), Ranking(families=True)), Ranking()) is None


def test_where_nothing_is_sure_to_fit_plans_at_the_edge_are_ranked() -> None:
    """The smallest of a few, in a memory of which it needs 0.88: more than is sure, less than what
    is left."""
    one = {"tp": [8], "pp": [1], "micro_batch": [1], "zero": [1], "recompute": ["full"]}
    whole = rank_plans(task(), Ranking(choose=one))
    assert whole.smallest is not None
    small = rank_plans(task(whole.smallest.memory_bytes / 0.88), Ranking(choose=one))
    assert small.best is not None
    assert small.limit == pytest.approx(0.9 * small.best.capacity)
    assert probability_fits(small.best) < FITS_PROBABILITY
