"""A time limit holds for every exact search, and the bound that it leaves is one."""

import time
from dataclasses import replace
from functools import cache

import pytest

from plan3d.search.layer_ilp import integer_programming
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.options import Deadline, SearchOptions, TimeIsUp
from plan3d.search.result.search_record import SearchRecord
from plan3d.search.space.space import Space
from plan3d.search.stage_dp import dynamic_programming
from plan3d.search.stage_dp.stage_search import StageSearch
from plan3d.search.stages.pipeline import pipelines
from plan3d.search.stages.stage_space import stage_space
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

PROGRAMS = ("dynamic-programming", "integer-programming")
FEW_CHOICES = {"pp": [128], "cp": [1], "recompute": ["none", "full"], "zero": [1]}
"""Leave time to make an integer program of 128 stages."""


@cache
def thousand_layers():
    model = replace(Model.preset("llama-3.1-8b"), order=(0,) * 1000)
    cluster = Cluster.profile("h100-sxm", gpus=1024)
    return Task(model, cluster, sequence=4096, global_batch=1024)


def test_no_pipeline_is_listed_once_the_time_is_up():
    """What was not listed has no bound."""
    late, space = Deadline(0.0), Space.of(small(), {"cp": [1]})
    search, left = StageSearch(limit=1e12, incumbent=1.0, deadline=late), pipelines_of(space)
    search.add_all(left)
    assert (search.bound, len(list(left))) == (0.0, len(list(pipelines_of(space))) - 1)
    seen = SearchRecord(small(), SearchOptions(limit=1e12, deadline=late))
    start, left = evaluate(small(), resolve(Plan(tp=8), 8).table()), pipelines_of(space)
    seen.add(start.plans)
    layers = integer_programming.LayerSearch(left, seen, start, tolerance=0.1, patience=1)
    assert (layers.bound, len(list(left))) == (0.0, len(list(pipelines_of(space))) - 1)
    assert not layers.proven


def pipelines_of(space):
    return pipelines(space.task, stage_space(space, "test", "step-time", ("1f1b",)).axes)


class Ticks:
    """A clock that goes on by a second whenever it is read, so that runs repeat themselves."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 1.0
        return self.seconds


@pytest.mark.parametrize("choose", [{}, {"pp": [3]}, FEW_CHOICES], ids=["all", "unequal", "few"])
@pytest.mark.parametrize("backend", PROGRAMS)
def test_a_search_of_a_thousand_layers_ends_at_its_time_limit(monkeypatch, backend, choose):
    """Counted in looks at the clock (tests/benchmarks/time_limits.py measures CPU seconds)."""
    clock = Ticks()
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", clock)
        ranking = Ranking(backend=backend, choose=choose, time_limit=8)
        found = rank_plans(thousand_layers(), ranking)
    assert 8 <= clock.seconds <= 13
    assert not found.complete


@cache
def small():
    cluster = Cluster.profile("a100-40gb-sxm", gpus=8)
    model = replace(Model.preset("llama-3.1-8b"), order=(0,) * 10)
    stack = replace(software_profile("megatron-core"), norm_in_linear=False)
    return Task(model, cluster, sequence=4096, global_batch=16, software=stack)


def ended_after(monkeypatch, search, ticks, **options):
    """A search of little memory that ends after so many looks at the clock."""
    limit = 0.44 * small().cluster.accelerator.memory
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", Ticks())
        asked = SearchOptions(limit=limit, deadline=Deadline.after(ticks or 10**9))
        return search(Space.of(small(), {"cp": [1], "virtual_stages": [1, 2]}), asked, **options)


TICKS = (1, 20, 60, None)


def test_the_integer_program_is_never_behind_the_dynamic_program(monkeypatch):
    """Whenever both are ended, with the same work done: its start is that program's answer."""
    steps = []
    for ticks in TICKS:
        first = ended_after(monkeypatch, dynamic_programming.search, ticks)
        found = ended_after(monkeypatch, integer_programming.search, ticks, tolerance=0.5)
        assert found.best.step_seconds <= first.best.step_seconds * (1 + 1e-12)
        assert {str(plan) for plan in found.plans} >= {str(first.plans[0])}
        steps.append(first.best.step_seconds)
    assert steps[-1] < 0.999 * steps[0]
    assert found.best.step_seconds == steps[-1]


@pytest.mark.parametrize(
    "search",
    [dynamic_programming.search, pytest.param(integer_programming.search, marks=pytest.mark.slow)],
)
def test_bounds_hold_whenever_a_search_ends(monkeypatch, search):
    each = [ended_after(monkeypatch, search, ticks) for ticks in TICKS]
    for found in each:
        assert found.complete == (found.gap <= 1.001e-3)
        assert found.bound <= each[-1].best.step_seconds * (1 + 1e-9)
    assert each[-1].gap < 0.04


def test_a_deadline_is_never_or_so_many_seconds_away():
    assert Deadline.after(None) == Deadline()
    assert not Deadline().passed
    assert 9 < Deadline.after(10).seconds_left <= 10
    late = Deadline(time.perf_counter())
    assert late.passed
    assert late.seconds_left == 0
    with pytest.raises(TimeIsUp):
        late.check()
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(InputError, match="time_limit must be above 0"):
            Deadline.after(seconds)


def test_a_search_ends_with_its_budget_or_its_time():
    options = SearchOptions(limit=1e9, budget=3)
    assert [options.ended(costed) for costed in (0, 2, 3, 4)] == [False, False, True, True]
    assert not SearchOptions(limit=1e9).ended(10**9)
    assert SearchOptions(limit=1e9, deadline=Deadline(0.0)).ended(0)
