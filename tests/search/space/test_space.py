"""The space is every legal plan, and the search's answer that of brute force."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.search.exact import exhaustive
from plan3d.search.exact.branch_and_bound import AXIS_ORDER
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.options import SearchOptions
from plan3d.search.result.pareto import beats_all, frontier
from plan3d.search.result.search_record import BestPlans, Frontier
from plan3d.search.space.axes import DERIVED, divisors
from plan3d.search.space.space import Space, levels
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.field_values import AUTO
from plan3d.simulator.plan.fields import AXES, EXPANSION, RANKING_AXES
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

AXES_OF_8 = {
    "tp": (1, 2, 3, 8),
    "cp": (1, 2),
    "pp": (1, 2, 4),
    "micro_batch": (1, 3, 4),
    "virtual_stages": (1, 2),
    "sequence_parallel": (0, 1),
    "recompute": (0, 2),
    "overlap_tp": (0,),
    "zero": (0, 1, 3),
    "overlap_grad_reduce": (0, 1),
}
MOE = {"ep": (1, 2, 3, 8), "etp": (1, 2)}
SPACES = {
    "dense": ("gpt3-1.3b", AXES_OF_8),
    "moe": ("mixtral-8x7b", AXES_OF_8 | MOE | {"recompute": (0,), "micro_batch": (1,)}),
    "given": (
        "gpt3-1.3b",
        {"tp": (2,), "pp": (1, 4), "dp": (1, 2, 4), "schedule": (0, 2), "micro_batch": (1,)}
        | {"overlap_param_gather": (0, 1), "overlap_p2p": (0, 1), "first_stage_layers": (0, 3)}
        | {"virtual_stages": (1, 2), "recompute": (2,), "zero": (0, 2)},
    ),
    "layout": (
        "gpt3-1.3b",
        {"pp": (2, 4), "layers_per_stage": ((5, 7, 7, 5),), "micro_batch": (1, 2), "tp": (1, 2)},
    ),
}
names = st.sampled_from(sorted(SPACES))


@cache
def task(model):
    cluster = Cluster.profile("h100-sxm", gpus=8)
    return Task(Model.preset(model), cluster, sequence=2048, global_batch=12)


def space(name):
    model, choose = SPACES[name]
    return Space.of(task(model), choose)


class SmallChunks(Space):
    """The same space in tables of another size."""

    size = 97

    def chunks(self, rows=0):
        yield from super().chunks(self.size)


def row_set(plans):
    return set(zip(*(getattr(plans, name).tolist() for name in AXES), strict=True))


def table_rows(table):
    return [tuple(getattr(table, name).tolist()[i] for name in AXES) for i in range(table.rows)]


def group_by_hand(row, batch):
    """The first size from pp on that leaves no rest, or one of pp at least; 0 is pp."""
    micro_batches, pp = batch // (row["dp"] * row["micro_batch"]), row["pp"]
    if row["virtual_stages"] == 1 or micro_batches % pp == 0 or micro_batches < pp:
        return 0
    sizes = range(pp, micro_batches + 1)
    return next(g for g in sizes if micro_batches % g == 0 or micro_batches % g >= pp)


@cache
def brute_force(name):
    """Every combination, derived fields filled in, one at a time; those that are legal."""
    everything, question = space(name), space(name).task
    rows = []
    for values in product(*(everything.axes[axis] for axis in AXES)):
        row = dict(zip(AXES, values, strict=True))
        if row["dp"] == AUTO:
            row["dp"] = max(question.gpus // (row["tp"] * row["cp"] * row["pp"]), 1)
        if row["schedule"] == AUTO:
            row["schedule"] = int(row["virtual_stages"] > 1)
        if row["overlap_param_gather"] == AUTO:
            row["overlap_param_gather"] = int(row["overlap_grad_reduce"] and row["zero"] > 0)
        if row["micro_batch_group"] == AUTO:
            row["micro_batch_group"] = group_by_hand(row, question.global_batch)
        if row["overlap_p2p"] == AUTO:
            row["overlap_p2p"] = int(row["virtual_stages"] > 1)
        if row["expert_dispatch"] == AUTO:
            row["expert_dispatch"] = int(row["ep"] > 1)  # an H100 has kernels for it
        if row["overlap_ep"] == AUTO:
            beside = row["pp"] == 1 or row["virtual_stages"] > 1
            some = question.global_batch > row["dp"] * row["micro_batch"] * row["pp"]
            full = row["recompute"] == 2
            row["overlap_ep"] = int(row["ep"] > 1 and not full and beside and some)
        rows.append(row)
    table = Plan(
        **{axis: [row[axis] for row in rows] for axis in AXES},
        layers_per_stage=everything.layers_per_stage,
    )
    return table.rows, table.take(legal_rows(table, question))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("rows", [13, 100, 10**6])
def test_the_space_is_every_legal_plan(name, rows):
    walked = space(name)
    tables = list(walked.chunks(rows))
    candidates, expected = brute_force(name)
    found = [row for table in tables for row in table_rows(table)]
    assert len(found) == len(set(found))
    assert set(found) == row_set(expected)
    assert walked.candidates == candidates
    assert candidates - walked.removed_by_rule.total() == len(found)
    widest = max(len(values) for values in walked.axes.values())
    assert all(0 < table.rows <= max(rows, widest) for table in not_empty(tables))


@pytest.mark.parametrize("name", SPACES)
def test_the_order_does_not_depend_on_the_chunks(name):
    whole = [row for table in space(name).chunks(10**6) for row in table_rows(table)]
    pieces = [row for table in space(name).chunks(50) for row in table_rows(table)]
    assert whole == pieces


def test_every_micro_batch_is_enumerated_where_bounds_do_not_add_them():
    """A published layout on V100s, 12 sequences with the optimizer on the host, takes .6 of the
    step of the best power of two."""
    asked = Task(
        Model.preset("gpt3-1.3b"),
        Cluster.profile("v100-32gb-sxm", gpus=8),
        sequence=2048,
        global_batch=96,
    )
    every = tuple(d for d in divisors(96) if d <= 64)
    assert Space.of(asked, {"offload_optimizer": [100]}).axes["micro_batch"] == every
    assert 12 not in Space.of(asked).axes["micro_batch"]
    chosen = {"offload_optimizer": [100], "micro_batch": [2]}
    assert Space.of(asked, chosen).axes["micro_batch"] == (2,)


def test_default_space_of_one_gpu():
    cluster = Cluster.profile("h100-sxm", gpus=1)
    question = Task(Model.preset("gpt3-125m"), cluster, sequence=1024, global_batch=4)
    plans = [plan for table in Space.of(question).chunks() for plan in table]
    assert plans
    assert all(p.tp == p.pp == p.cp == p.dp == 1 and p.zero == 0 for p in plans)


def ranking(name, limit):
    """Scores of the best plan of each combination of DISTINCT fields, best first."""
    _, plans = brute_force(name)
    costs = simulate(space(name).task, plans)
    best = {}
    keys = zip(*(getattr(plans, axis).tolist() for axis in RANKING_AXES), strict=True)
    for i, key in enumerate(keys):
        if costs.memory_total[i] <= limit:
            best[key] = min(best.get(key, np.inf), costs.step[i])
    return sorted(best.values())


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("top", [1, 5, 1000])
@pytest.mark.parametrize("headroom", [0.1, 0.7])
def test_find_plans_is_brute_force(name, top, headroom):
    model, choose = SPACES[name]
    result = rank_plans(task(model), Ranking(choose=choose, top=top, headroom=headroom))
    candidates, legal_plans = brute_force(name)
    costs = simulate(task(model), legal_plans)
    fits = costs.memory_total <= result.limit
    counts = result.counts
    assert (counts.candidates, counts.evaluated) == (candidates, legal_plans.rows)
    assert counts.feasible == np.count_nonzero(fits)
    assert counts.candidates - sum(counts.removed.values()) == counts.feasible
    assert counts.removed["memory"] == np.count_nonzero(~fits)
    assert result.complete
    assert result.smallest.memory_bytes == pytest.approx(costs.memory_total.min(), rel=1e-12)
    if not fits.any():
        assert result.best is None
        assert result.plans == []
        return
    expected = ranking(name, result.limit)[:top]
    assert result.costs.step_seconds.tolist() == pytest.approx(expected, rel=1e-12)
    assert (np.diff(result.costs.step_seconds) >= 0).all()
    assert (result.costs.memory_bytes <= result.limit).all()
    assert result.best.step_seconds == pytest.approx(costs.step[fits].min(), rel=1e-12)
    assert row_set(result.costs.plans) <= row_set(legal_plans)
    keys = {tuple(getattr(plan, axis) for axis in RANKING_AXES) for plan in result.plans}
    assert len(keys) == len(result.plans)


@pytest.mark.parametrize("objective", ["step-time", "memory", "cost"])
def test_best_of_each_objective(objective):
    model, choose = SPACES["dense"]
    result = rank_plans(task(model), Ranking(choose=choose, objective=objective, top=3))
    _, plans = brute_force("dense")
    costs = simulate(task(model), plans)
    fits = costs.memory_total <= result.limit
    scores = costs.memory_total if objective == "memory" else costs.step
    got = result.costs.memory_total if objective == "memory" else result.costs.step
    assert got[0] == pytest.approx(scores[fits].min(), rel=1e-12)
    assert (np.diff(got) >= 0).all()


@example(name="layout", size=11)
@given(name=names, size=st.integers(300, 3000))
@settings(deadline=None, max_examples=2)
def test_chunk_size_changes_neither_set_nor_ranking(name, size):
    whole = space(name)
    pieces = SmallChunks(whole.task, whole.axes, whole.layers_per_stage)
    pieces.size = size
    asked = SearchOptions(limit=6e10, top=8, frontier=True)
    one, many = exhaustive.search(whole, asked), exhaustive.search(pieces, asked)
    assert vars(one.counts) == vars(many.counts)
    for left, right in ((one.costs, many.costs), (one.frontier, many.frontier)):
        assert (left is None) == (right is None)
        if left is not None:
            assert table_rows(left.plans) == table_rows(right.plans)
            np.testing.assert_array_max_ulp(left.step, right.step, 1)


@pytest.mark.parametrize("name", SPACES)
def test_frontier_is_brute_force(name):
    model, choose = SPACES[name]
    result = rank_plans(task(model), Ranking(choose=choose, headroom=0.0, frontier=True))
    _, plans = brute_force(name)
    costs = simulate(task(model), plans)
    points = set(zip(costs.step.tolist(), costs.memory_total.tolist(), strict=True))
    points = {point for point in points if point[1] <= result.limit}
    if not points:
        assert result.frontier is None
        return
    columns = result.frontier.step.tolist(), result.frontier.memory_total.tolist()
    found = list(zip(*columns, strict=True))
    assert found == sorted(found)
    near = 1 + 1e-9
    for time, size in found:
        assert not any(
            (t * near < time and s <= size) or (t <= time and s * near < size) for t, s in points
        )
    for time, size in points:
        assert any(t <= time * near and s <= size * near for t, s in found)


def test_a_budget_that_ends_the_search_is_said():
    model, choose = SPACES["dense"]
    full = rank_plans(task(model), Ranking(choose=choose))
    part = rank_plans(task(model), Ranking(choose=choose, budget=10))
    assert full.complete
    assert part.counts.evaluated == 10
    assert not part.complete
    enough = rank_plans(task(model), Ranking(choose=choose, budget=full.counts.evaluated))
    assert enough.counts.evaluated == full.counts.evaluated


# The parts of a search alone


def beaten(points, i):
    a, b = points[i]
    return any(x <= a and y <= b and (x < a or y < b) for x, y in points)


pairs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30)


@given(points=pairs)
@settings(deadline=None)
def test_frontier_rows(points):
    first, second = (np.array(column, float) for column in zip(*points, strict=True))
    keep = frontier(first, second)
    expected = {points[i] for i in range(len(points)) if not beaten(points, i)}
    assert [points[i] for i in keep] == sorted(expected)


@given(points=pairs, new=pairs)
@settings(deadline=None)
def test_beats_all(points, new):
    known = [points[i] for i in frontier(*(np.array(c, float) for c in zip(*points, strict=True)))]
    columns = [np.array(c, float) for c in (*zip(*new, strict=True), *zip(*known, strict=True))]
    kept = set(beats_all(*columns).tolist())
    better = (not any(x <= a and y <= b for x, y in known) for a, b in new)
    assert kept == {i for i, beats in enumerate(better) if beats}


def test_an_empty_best_has_no_result():
    assert BestPlans(3).result() is None
    best = BestPlans(3)
    legal = next(iter(space("dense").chunks()))
    best.add(simulate(task(SPACES["dense"][0]), legal), np.full(legal.rows, np.inf))
    assert best.result() is None
    assert Frontier().costs is None


@given(number=st.integers(1, 5000))
def test_divisors(number):
    assert list(divisors(number)) == [d for d in range(1, number + 1) if number % d == 0]


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        ({"tq": (1,)}, "did you mean tp"),
        ({"tp": ()}, "at least one value"),
        ({"tp": 4}, r"must be a list, such as \[4\]"),
        ({"precision": "bf16"}, "must be a list"),
        ({"tp": (0,)}, "at least 1"),
        ({"zero": (4,)}, "at most 3"),
        ({"zero": ("auto",)}, "cannot be searched"),
        ({"zero": ("auto", 1)}, "zero=auto cannot be searched"),
        ({"schedule": ("auto", "zb-h1")}, "schedule=auto cannot be searched"),
        ({"recompute": ("most",)}, "recompute=most"),
    ],
)
def test_bad_constraints(choose, message):
    with pytest.raises(InputError, match=message):
        rank_plans(task("gpt3-1.3b"), Ranking(choose=choose))


def test_rules_about_plain_fields_and_others_hold_in_a_plain_space():
    """Muon and its sharding: what offload changes of the rule does not leave the rule out."""
    choose = {"optimizer": ["muon"], "zero": [1, 2, 3], "micro_batch": [1], "tp": [1]}
    for plans in not_empty(Space.of(task("gpt3-1.3b"), choose).chunks()):
        assert legal_rows(plans, task("gpt3-1.3b")).all()


ZERO_LAST = (*(name for name in EXPANSION if name != "zero"), "zero")


@pytest.mark.parametrize("order", [EXPANSION, AXIS_ORDER, ZERO_LAST])
def test_levels_are_axes_that_are_open_each_after_all_that_it_follows_from(order):
    open_axes = Space.of(task("gpt3-1.3b"), {"tp": [1, 2], "pp": [1], "micro_batch": [1, 2]})
    names = [level.name for level in levels(open_axes, order)]
    derived = {name for name in names if open_axes.axes[name] == (AUTO,)}
    assert {len(open_axes.axes[name]) > 1 for name in set(names) - derived} == {True}
    assert "pp" not in names
    turns = {name: turn for turn, name in enumerate(names)}
    sources = [(turns[name], turns.get(of, -1)) for name in derived for of in DERIVED[name].reads]
    assert len(sources) > 8
    assert all(source < turn for turn, source in sources)


def test_fields_of_two_values_are_searched():
    cluster = Cluster.profile("h100-sxm", gpus=8)
    task = Task(Model.preset("gpt3-1.3b"), cluster, sequence=2048, global_batch=8)
    space = Space.of(task, {"tp": [1, 2], "pp": [1], "zero": [0, 1, 3], "cp": [1]})
    assert {"tp", "zero"} <= set(space.searched_fields)
    assert not {"pp", "cp"} & set(space.searched_fields)
