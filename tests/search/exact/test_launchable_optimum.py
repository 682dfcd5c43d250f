"""What the launchable optimum is put together from: plans with steps and bytes by hand."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from plan3d.launch_files.frameworks import for_framework
from plan3d.search.exact import exhaustive
from plan3d.search.exact.launchable_optimum import (
    REACH,
    _beaten_by,
    _best_of_families,
    _changed,
    _changed_once,
    _gains,
    _safe_row,
    _unbounded_schedules,
    _with_first,
    over_launchable,
)
from plan3d.search.exact.launchable_space import launchable_space
from plan3d.search.result.families import ALIKE, Families
from plan3d.search.result.options import SearchOptions
from plan3d.search.space.space import Space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.fields import AXES, code
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.rules.validity import launchable_rows, legal_rows
from plan3d.simulator.step.evaluate import evaluate, simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-1.3b"), Cluster.profile("h100-sxm", gpus=8), sequence=2048, global_batch=8
)
MEGATRON = for_framework(TASK, "megatron")
EXPERTS = for_framework(replace(TASK, model=Model.preset("mixtral-8x7b")), "megatron")
PIPELINES = ["pp=4 virtual_stages=2 zero=1", "tp=2 pp=2"]


def costs_of(plans, step, memory=None, task=TASK):
    """The costs of some plans with other steps, and bytes of 10 or as they are given."""
    table = resolve(concat([Plan.parse(text).table() for text in plans]), task.gpus)
    size = np.full(len(plans), 10.0) if memory is None else np.array(memory, float)
    return replace(simulate(task, table), step=np.array(step, float), memory_total=size)


@pytest.mark.parametrize(
    ("safe_limit", "row"),
    [(11, [2]), (10.5, [1]), (10, [1]), (9, [0]), (5, [0]), (4, []), (None, [])],
)
def test_the_fastest_plan_that_surely_fits(safe_limit, row):
    """Steps of 3, 2 and 1 s in 5, 10 and 11 bytes."""
    costs = costs_of(["tp=1", "tp=2", "tp=4"], [3, 2, 1], [5, 10, 11])
    assert _safe_row(costs, SearchOptions(limit=99, safe_limit=safe_limit)).tolist() == row


def test_the_best_of_each_family_that_fits_and_of_each_of_its_depths():
    """Tensor plans, pipelines of two and of four stages, and one that does not fit."""
    plans = ["tp=2", "pp=2", "tp=4", "pp=4", "pp=2 micro_batch=2", "tp=8"]
    costs = costs_of(plans, [4, 3, 2, 5, 3.5, 1], [10, 10, 10, 10, 10, 11])
    options = SearchOptions(limit=10)
    assert _best_of_families(costs, options).tolist() == [2, 1]
    assert _best_of_families(costs, options, by_depth=True).tolist() == [2, 1, 3]


@pytest.mark.parametrize(
    ("least", "memory", "beaten"),
    [
        # Of the first, whose family and depth has a plan of 2 s.
        ([1.9, 9, 9], 8, [False, True, False]),
        ([2.0, 9, 9], 8, [False, True, False]),
        ([2.1, 3.1, 1], 8, [True, True, False]),
        # Of the second: 3 s fit; the 2.5 s of all that do not surely fit.
        ([9, 2.9, 1], 8, [True, False, False]),
        ([9, 3.0, 1], 8, [True, False, False]),
        # What surely fits is beaten by 3 s alone, which is the best that does.
        ([2.5, 3.0, 99], 6, [False, False, False]),
        ([3.1, 3.1, 99], 6, [True, True, False]),
    ],
)
def test_plans_that_known_ones_beat(least, memory, beaten):
    """Known are a tensor plan of 2 s in 8 bytes and a pipeline of 3 s in 6, another of 1 s does not
    fit; a pipeline of eight stages is of a depth that none has."""
    every = costs_of(["tp=2", "pp=2", "pp=2 micro_batch=2"], [2, 3, 1], [8, 6, 9])
    asked = resolve(concat([Plan.parse(t).table() for t in ("tp=4", "pp=2", "pp=8")]), 8)
    found = _beaten_by(every, asked, SearchOptions(limit=8, safe_limit=6))
    rows = np.arange(3)
    assert found(rows, np.array(least, float), np.full(3, float(memory))).tolist() == beaten
    assert (
        found(rows[1:], np.array(least[1:], float), np.full(2, float(memory))).tolist()
        == (beaten[1:])
    )


@pytest.mark.parametrize(
    ("slower", "starts"), [(1.0, 2), (1 + REACH - 1e-9, 2), (1 + REACH, 2), (1 + REACH + 1e-9, 1)]
)
def test_plans_are_changed_up_to_half_behind_the_fastest(slower, starts):
    """Each start recomputes nothing or all."""
    wide = launchable_space(Space.of(MEGATRON), ())
    every = costs_of(["tp=2 pp=2", "pp=4"], [2.0, 2.0 * slower], task=MEGATRON)
    found, tried = _changed_once(wide, ["recompute"], SearchOptions(limit=1e12), every)
    assert _changed(wide, ["recompute"], every.plans.take([0])).recompute.tolist() == [0, 2]
    assert tried == 2 * starts
    assert found.step.tolist()[:2] == every.step.tolist()
    assert len(found) == 2 + tried
    nothing, none = _changed_once(wide, [], SearchOptions(limit=1e12), every)
    assert (nothing, none) == (every, 0)


def test_the_plan_that_surely_fits_is_changed_however_slow_it_is():
    wide = launchable_space(Space.of(MEGATRON), ())
    every = costs_of(["tp=2 pp=2", "pp=4"], [2.0, 9.0], [10, 5], task=MEGATRON)
    for safe_limit, tried in ((4, 2), (5, 4)):
        options = SearchOptions(limit=1e12, safe_limit=safe_limit)
        assert _changed_once(wide, ["recompute"], options, every)[1] == tried


@pytest.mark.parametrize(
    ("task", "texts", "names"),
    [
        (MEGATRON, PIPELINES, ("first_stage_layers", "last_stage_layers")),
        (MEGATRON, PIPELINES, ("virtual_stages", "overlap_p2p")),
        # Of a dense model etp has one value.
        (MEGATRON, PIPELINES, ("etp", "overlap_p2p", "overlap_param_gather")),
        # Rules that read a field behind the changed ones: virtual stages and other overlaps.
        (EXPERTS, ["tp=2 pp=2 ep=2", "pp=2 ep=2 virtual_stages=2"], ("overlap_ep",)),
        (EXPERTS, ["tp=2 ep=2 overlap_ep=1"], ("overlap_tp",)),
    ],
)
def test_changed_plans_are_all_that_every_rule_allows(task, texts, names):
    """Brute force over the values of the changed fields."""
    wide = launchable_space(Space.of(task), ())
    plans = resolve(concat([Plan.parse(text).table() for text in texts]), 8)
    found = _changed(wide, names, plans)
    rows = set(zip(*(getattr(found, name).tolist() for name in AXES), strict=True))
    assert len(rows) == found.rows
    values = np.array([*product(*(wide.axes[name] for name in names))])
    every = plans.take(np.tile(np.arange(plans.rows), len(values)))
    own = dict(zip(names, np.repeat(values, plans.rows, axis=0).T, strict=True))
    every = resolve(replace(every, **own), 8).table()
    legal = legal_rows(every, task) & launchable_rows(every, task)
    allowed = np.all([rule.ok(every, task) for rule in wide.search_rules], axis=0)
    assert not (legal & allowed).all()
    every = every.take(np.flatnonzero(legal & allowed))
    expected = set(zip(*(getattr(every, name).tolist() for name in AXES), strict=True))
    assert expected
    assert rows == expected


def test_the_best_plan_stands_before_the_listed_ones_once_each():
    """Of its family those within ALIKE of it stay, up to exactly that, and of others all. It takes
    over what the first of its listed family stands for."""
    edge = 1 + ALIKE
    plans = ["tp=2", "tp=4", "tp=8", "tp=2 micro_batch=2", "pp=2", "tp=4"]
    every = costs_of(plans, [1.0, edge, edge + 1e-9, 1.5, 1.6, edge])
    standing = Families(np.array([7, 6, 5, 4]), np.array([1.1, 1.2, 1.3, 1.4]))
    costs, families = _with_first(every, np.array([0]), np.array([1, 2, 3, 4]), standing)
    assert [str(plan) for plan in costs.plans] == ["tp=2 dp=4", "tp=4 dp=2", "pp=2 dp=4"]
    assert costs.step.tolist() == [1.0, edge, 1.6]
    assert families.plans.tolist() == [1, 7, 4]
    assert families.fastest.tolist() == [1.0, 1.1, 1.4]
    # Where the best plan is a listed one, it stands for as many as that did.
    costs, families = _with_first(every, np.array([1]), np.array([5, 4]), standing.take([0, 3]))
    assert [str(plan) for plan in costs.plans] == ["tp=4 dp=2", "pp=2 dp=4"]
    assert families.plans.tolist() == [7, 4]


def test_gains_are_steps_with_one_field_after_the_other_as_in_the_search():
    space = Space.of(MEGATRON)
    names = ("first_stage_layers", "last_stage_layers", "overlap_p2p", "etp")
    plan = resolve(Plan.parse("pp=4 first_stage_layers=5 last_stage_layers=5 zero=1"), 8)
    steps = [
        evaluate(MEGATRON, Plan.parse(f"pp=4 zero=1 {ends}")).step_seconds
        for ends in ("first_stage_layers=5 last_stage_layers=5", "last_stage_layers=5", "")
    ]
    first, last = _gains(plan.table(), space, names)
    assert first[:3] == ("last_stage_layers", "5", "0")
    assert last[:3] == ("first_stage_layers", "5", "0")
    assert first[3:] == pytest.approx((steps[1], steps[1] / steps[2] - 1))
    assert last[3:] == pytest.approx((steps[0], steps[0] / steps[1] - 1))
    assert not [*_gains(resolve(Plan(pp=4, zero=1), 8).table(), space, ("etp", names[0]))]


@pytest.mark.parametrize(
    ("axis", "found"),
    [
        ([code("schedule", "1f1b")], {"zb-v", "dualpipe-v"}),
        ([code("schedule", "dualpipe")], {"zb-v", "dualpipe-v"}),
        ([code("schedule", "zb-v")], set()),
    ],
)
def test_schedules_without_bounds_are_those_of_one_copy_not_placed_in_turn(axis, found):
    """dualpipe and chimera hold two copies of the model."""
    space = Space.of(TASK)
    space = replace(space, axes={**space.axes, "schedule": tuple(axis)})
    assert {*_unbounded_schedules(space)} == {code("schedule", name) for name in found}


def test_a_proof_costs_fewer_plans_than_there_are_and_changes_are_counted():
    """One plan with two ways to gather parameters; then 24 layers in two stages, of 9 to 14 layers
    where they are not even: six first, six last, five pairs and none."""
    chosen = {"tp": [2], "cp": [1], "pp": [2], "micro_batch": [1], "virtual_stages": [1]}
    chosen |= {"zero": [1], "recompute": ["none"], "overlap_tp": [1], "overlap_grad_reduce": [1]}
    space, options = Space.of(MEGATRON, chosen), SearchOptions(limit=7e10, families=True)
    found = over_launchable(space, options, exhaustive.search(space, options), chosen)
    assert found.counts.changes == 2 + (6 + 6 + 5 + 1)
    every = exhaustive.search(launchable_space(space, chosen), replace(options, families=False))
    assert found.costs.step[0] == pytest.approx(every.costs.step[0], rel=1e-9)
    assert found.optimum.proven
    assert found.optimum.costed < every.counts.evaluated


def test_schedules_without_bounds_are_counted_with_the_other_changes():
    """No framework: zb-v and dualpipe-v hold two chunks a rank, beside what is opened."""
    chosen = {"tp": [2], "cp": [1], "pp": [2], "micro_batch": [1], "virtual_stages": [1, 2]}
    chosen |= {"zero": [1], "recompute": ["none"], "overlap_tp": [1], "overlap_grad_reduce": [1]}
    space, options = Space.of(TASK, chosen), SearchOptions(limit=7e10, families=True)
    result = exhaustive.search(space, options)
    given = over_launchable(space, options, result, {*chosen, "schedule"}).counts.changes
    assert over_launchable(space, options, result, chosen).counts.changes > given > 0
