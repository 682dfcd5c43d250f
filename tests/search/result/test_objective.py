"""What a search ranks by, and what it says where nothing fits, by hand."""

from __future__ import annotations

from dataclasses import replace
from math import e, log

import numpy as np
import pytest

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.families import simplest_first
from plan3d.search.result.objective import BARRIER, bound_of, guided, score
from plan3d.search.result.obstacle import obstacle
from plan3d.search.result.options import Deadline, SearchOptions, TimeIsUp
from plan3d.search.result.search_record import BestOfDepths, BestPlans, SearchRecord
from plan3d.search.result.search_result import TIE
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-1.3b"), Cluster.profile("h100-sxm", gpus=8), sequence=2048, global_batch=8
)


def test_what_does_not_fit_is_worse_by_its_share_of_the_limit():
    """Steps of 2 and e s; 50 and 200 of 100 bytes; 100 of 100 fits."""
    table = concat([resolve(Plan(tp=tp), 8).table() for tp in (1, 2, 4)])
    costs = replace(
        simulate(TASK, table),
        step=np.array([2.0, e, 1.0]),
        memory_total=np.array([50.0, 200.0, 100.0]),
    )
    assert guided(costs, "step-time", 100.0) == pytest.approx([log(2), BARRIER + log(2), 0.0])
    assert score(costs, "step-time", 100.0).tolist() == [2.0, np.inf, 1.0]
    assert score(costs, "memory", 199.0).tolist() == [50.0, np.inf, 100.0]


def test_a_bound_on_the_cost_is_one_on_the_step_of_every_gpu():
    assert bound_of("step-time", TASK, 2.0) == 2.0
    assert bound_of("cost", TASK, 2.0) == 2.0 * 8
    assert bound_of("cost", TASK, np.inf) is None


@pytest.mark.parametrize(("share", "fits"), [(0.99, True), (1.01, False), (1.99, False)])
def test_what_fills_a_host_by_more_than_all_of_it_does_not_fit(share, fits):
    plan = resolve(Plan(zero=3, offload_optimizer=100), 8)
    host, usual = TASK.cluster.host, simulate(TASK, plan.table())
    assert host is not None
    memory = host.memory * usual.host_share[0] / share
    cluster = replace(TASK.cluster, host=replace(host, memory=memory))
    costs = simulate(replace(TASK, cluster=cluster), plan.table())
    assert costs.host_share == pytest.approx([share])
    assert np.isfinite(score(costs, "step-time", np.inf)).tolist() == [fits]


@pytest.mark.parametrize("most", [1, 2, 3, 20])
def test_the_best_are_kept_in_whatever_order_they_are_offered(most):
    tp, size = (x.ravel() for x in np.meshgrid([1, 2, 4, 8], np.arange(1, 301)))
    costs = simulate(TASK, resolve(Plan(tp=tp, micro_batch=size), 8))
    for seed in range(8):
        best = BestPlans(limit=most)
        best.add(costs, np.random.default_rng(seed).permutation(len(costs)) + 1.0)
        assert (best.least, best.threshold) == (1.0, most)


def test_the_best_of_a_family_and_depth_stays_whatever_comes_later():
    """Of plans of 3, 2 and 4 s, offered one after another, the second."""
    costs, best = simulate(TASK, resolve(Plan(tp=2), 8).table()), BestOfDepths(TASK.model.layers)
    for seconds in (3.0, 2.0, 4.0, 2.0):
        best.add(replace(costs, step=np.array([seconds])), np.array([seconds]))
    assert len(best.tables) == 2
    found = best.result()
    assert found is not None
    assert found.step.tolist() == [2.0]


def test_ties_are_steps_within_a_tolerance_of_the_best():
    found = rank_plans(TASK, Ranking(choose={"cp": [1], "pp": [1]}, top=4))
    assert found.costs is not None
    steps = np.array([1.0, 1 + 0.9 * TIE, 1 + TIE, 1 + 1.1 * TIE])
    assert replace(found, costs=replace(found.costs, step=steps)).ties == 3


def test_stages_of_as_many_layers_are_simpler_than_any_others():
    """25 layers in 5 stages, and in 4, of which one has a layer more, though it needs less."""
    odd = replace(TASK.model, order=(0,) * 25)
    task = Task(odd, Cluster.profile("h100-sxm", gpus=20), sequence=2048, global_batch=20)
    table = concat([resolve(Plan(pp=pp), 20).table() for pp in (4, 5)])
    costs = replace(simulate(task, table), memory_total=np.array([1.0, 2.0]))
    assert simplest_first(costs).tolist() == [1, 0]


def test_a_full_host_is_what_is_named_where_the_gpus_hold_what_they_may():
    """Also where they hold exactly that."""
    host = TASK.cluster.host
    assert host is not None
    small = replace(TASK.cluster, host=replace(host, memory=1e9))
    asked = Ranking(choose={"offload_optimizer": [100], "micro_batch": [1]})
    found = rank_plans(replace(TASK, cluster=small), asked)
    assert found.smallest is not None
    assert found.counts.evaluated > found.counts.feasible == 0
    exact = replace(found, limit=float(found.smallest.memory_bytes))
    assert "host" in obstacle(exact)
    assert "over the limit of" in obstacle(replace(found, limit=0.9 * exact.limit))


def test_the_largest_part_of_what_does_not_fit_is_named():
    """Master weights and two moments of 4 bytes are more than weights and gradients of 2 and 4."""
    asked = {"tp": [1], "pp": [1], "zero": [0], "micro_batch": [1], "recompute": ["full"]}
    found = rank_plans(TASK, Ranking(choose=asked))
    assert found.costs is not None
    smallest = found.costs.row()
    size = 12 * TASK.model.parameters / 2**30
    said = obstacle(replace(found, smallest=smallest, limit=2.0**30))
    needs = smallest.memory_bytes / 2**30
    assert (
        f"needs {needs:.1f} GiB on stage 0 of 1, {needs - 1:.1f} GiB over the limit of 1.0 GiB"
        in said
    )
    assert f"its largest part is optimizer with {size:.1f} GiB" in said


@pytest.mark.parametrize(("seconds", "passed"), [(1000.0, False), (1e-9, True)])
def test_seconds_are_left_until_a_deadline_and_none_behind_it(seconds, passed):
    deadline = Deadline.after(seconds)
    assert 0.99 * seconds * (not passed) <= deadline.seconds_left <= seconds
    assert deadline.passed == passed
    if passed:
        with pytest.raises(TimeIsUp):
            deadline.check()


def test_of_plans_that_need_as_little_the_first_is_the_smallest():
    """And no plan beyond the limit, or beyond its host, is feasible."""
    record = SearchRecord(TASK, SearchOptions(limit=1e12))
    plans = [resolve(Plan(zero=1, overlap_grad_reduce=overlap), 8).table() for overlap in (0, 1)]
    sizes = {simulate(TASK, plan).memory_total[0] for plan in plans}
    assert len(sizes) == 1
    for plan in plans:
        record.add(plan)
    assert record.smallest.plans.overlap_grad_reduce == 0
    assert (record.counts.evaluated, record.counts.feasible) == (2, 2)
    host = replace(TASK.cluster, host=replace(TASK.cluster.host, memory=1e9))
    for limit, on_host in ((1e12, 1), (1.0, 0)):
        crowded = SearchRecord(replace(TASK, cluster=host), SearchOptions(limit=limit))
        crowded.add(resolve(Plan(zero=1, offload_optimizer=100), 8).table())
        assert (crowded.counts.evaluated, crowded.counts.feasible) == (1, 0)
        assert crowded.host_short == on_host


@pytest.mark.parametrize(
    ("limit", "safe", "largest"), [(10.0, None, 10.0), (10.0, 8.0, 10.0), (8.0, 10.0, 10.0)]
)
def test_the_largest_limit_is_that_of_a_plan_of_either_kind(limit, safe, largest):
    assert SearchOptions(limit=limit, safe_limit=safe).largest_limit == largest


@pytest.mark.parametrize(
    ("budget", "costed", "ended"), [(None, 10**9, False), (5, 4, False), (5, 5, True), (5, 6, True)]
)
def test_a_search_ends_with_its_budget(budget, costed, ended):
    assert SearchOptions(limit=1.0, budget=budget).ended(costed) == ended


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_time_limit_is_above_zero(seconds):
    with pytest.raises(InputError, match="must be above 0"):
        Deadline.after(seconds)


def test_plans_that_tie_are_in_the_order_of_their_fields():
    """An even cut and the same cut with its ends stated, whichever is found first."""
    gpt = Task(
        Model.preset("gpt3-1.3b"),
        Cluster.profile("h100-sxm", gpus=8),
        sequence=2048,
        global_batch=64,
    )
    even, stated = (
        simulate(gpt, resolve(Plan.parse(f"pp=4 dp=2{ends}").table(), 8))
        for ends in ("", " last_stage_layers=6")
    )
    assert even.step == stated.step
    for found in ((even, stated), (stated, even)):
        best = BestPlans(1)
        for costs in found:
            best.add(costs, costs.step)
        assert best.result().plans.last_stage_layers.tolist() == [0]
