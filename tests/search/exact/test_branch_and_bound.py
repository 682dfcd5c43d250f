"""Bounds are admissible, and the ranking is that of the exhaustive search."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plan3d.search.exact import branch_and_bound, exhaustive
from plan3d.search.exact.bounds import PLACEMENT_FIELDS, SIZE_FIELDS, Relaxation
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.objective import OBJECTIVES
from plan3d.search.result.options import SearchOptions
from plan3d.search.space.space import PartialPlans, Space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.fields import STRATEGY
from plan3d.simulator.plan.plan import concat
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASKS = {
    "dense": ("gpt3-1.3b", "h100-sxm", "megatron-core"),
    "parameter-cut": ("llama-7b", "h100-sxm", "nanotron"),
    "unfused": ("gpt3-1.3b", "a100-40gb-sxm", "megatron-lm-2021"),
    "moe": ("mixtral-8x7b", "h200-sxm", "megatron-core"),
    "network": ("amoebanet-1.8b", "a100-40gb-sxm", "megatron-core"),
    "mtp": ("deepseek-v3", "h200-sxm", "megatron-core"),
}
VALUES = {
    "tp": (1, 2, 4, 8),
    "tp_grid": ("1d", "2x2", "2.5d:1x2x2", "3d:2x1x1", "2x2x2"),
    "cp": (1, 2),
    "pp": (1, 2, 4, 8),
    "ep": (1, 2, 8),
    "etp": (1, 2),
    "micro_batch": (1, 2, 3, 4),
    "virtual_stages": (1, 2, 3),
    "schedule": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    "micro_batch_group": (0, 4, 6, 8),
    "mtp_stage": (0, 1, 2, 4),
    "first_stage_layers": (0, 1, 2, 3, 5),
    "last_stage_layers": (0, 1, 3, 6),
    "sequence_parallel": (0, 1),
    "recompute": (0, 1, 2),
    "overlap_tp": (0, 1),
    "overlap_ep": (0, 1),
    "cp_comm": (0, 1, 2),
    "expert_dispatch": (0, 1),
    "precision": (0, 2, 3),
    "optimizer": (0, 1),
    "zero": (0, 1, 2, 3),
    "overlap_grad_reduce": (0, 1),
    "overlap_param_gather": (0, 1),
    "overlap_p2p": (0, 1),
}


@cache
def task(name, gpus=8):
    model, cluster, software = TASKS[name]
    return Task(
        Model.preset(model),
        Cluster.profile(cluster, gpus=gpus),
        sequence=2048 if Model.preset(model).kinds else 1,
        global_batch=24,
        software=software_profile(software),
    )


@st.composite
def spaces(draw):
    """A task's name, its GPUs, and at most three values on at most eight axes."""
    chosen = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=8, unique=True))
    choose = {
        name: draw(st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=3, unique=True))
        for name in chosen
    }
    narrow = {"overlap_tp": [0], "recompute": [0, 2], "virtual_stages": [1, 2], "cp": [1]}
    asked = {**narrow, "micro_batch": [1, 2], **choose}
    return draw(st.sampled_from(sorted(TASKS))), draw(st.sampled_from([8, 16])), asked


def _check_quick_bounds(relaxation, columns, costs):
    """Bounds of single ranks, which rule plans out before all ranks are bounded, are bounds too."""
    asked = []

    def beaten(rows, step, memory):
        asked.append(rows.size)
        return rows % 2 == len(asked) % 2

    bounds = relaxation.bounds(columns, len(costs), beaten)
    assert (bounds.communication <= costs.step).all()
    assert (bounds.memory <= costs.memory_total).all()
    assert asked or relaxation.open_values


@given(asked=spaces())
@example(asked=("dense", 8, {"tp": [2], "sequence_parallel": [0, 1]}))
@example(
    asked=(
        "parameter-cut",
        16,
        {
            "cp": [1],
            "micro_batch": [1, 2],
            "overlap_tp": [0],
            "recompute": [0, 2],
            "virtual_stages": [1, 2],
        },
    )
)
def test_bounds_are_below_every_completion(asked):
    name, gpus, choose = asked
    space = Space.of(task(name, gpus), choose)
    tables = list(space.chunks())
    if not tables:
        return
    plans = concat(tables)
    costs = simulate(space.task, plans)
    fields = list(plans.columns())
    outer = set(SIZE_FIELDS)
    ends = {"first_stage_layers", "last_stage_layers"}
    placed = ends | {"virtual_stages", "schedule", "micro_batch_group", "mtp_stage"}
    local = set(STRATEGY) - outer
    order = {"virtual_stages", "schedule"}
    inner = (set(), local, ends, local | order, placed, placed | local)
    for known in (outer | more for more in inner):
        relaxation = Relaxation(space, frozenset(known))
        if not relaxation.has_bounds:
            assert not known >= placed
            continue
        columns = {name: getattr(plans, name) for name in fields if name in known}
        bounds = relaxation.bounds(columns, plans.rows)
        assert (bounds.compute <= bounds.pipeline).all()
        assert (bounds.pipeline <= bounds.communication * (1 + 1e-12)).all()
        assert (bounds.communication <= costs.step).all()
        assert (bounds.memory <= costs.memory_total).all()
        assert (bounds.compute > 0).all()
        _check_quick_bounds(relaxation, columns, costs)
    assert not Relaxation(space, frozenset(fields) - {"micro_batch"}).has_bounds


def test_bounds_of_known_stages_are_exact():
    """But for what a rank's chunks that differ wait for each other."""
    choose = {"zero": [1], "overlap_grad_reduce": [1], "overlap_param_gather": [1]}
    space = Space.of(task("moe", 16), choose)
    plans = concat(list(space.chunks()))
    costs = simulate(space.task, plans)
    bounds = Relaxation(space, frozenset(space.axes)).bounds(plans.columns(), plans.rows)
    one = plans.virtual_stages == 1
    np.testing.assert_allclose(bounds.communication[one], costs.step[one], rtol=1e-8)
    assert (bounds.communication >= costs.step * 0.9).all()
    np.testing.assert_allclose(bounds.memory, costs.memory_total, rtol=1e-8)


def ranked(result, objective):
    if result.costs is None:
        return []
    return OBJECTIVES[objective](result.costs).tolist()


@given(
    asked=spaces(),
    objective=st.sampled_from(["step-time", "memory", "cost"]),
    top=st.sampled_from([1, 3, 10]),
    headroom=st.sampled_from([0.1, 0.5, 0.8, 0.95]),
)
def test_ranking_is_the_exhaustive_one(asked, objective, top, headroom):
    name, gpus, choose = asked
    question = task(name, gpus)
    options = {"objective": objective, "choose": choose, "top": top, "headroom": headroom}
    full = rank_plans(question, Ranking(**options))
    found = rank_plans(question, Ranking(backend="branch-and-bound", **options))
    assert ranked(found, objective) == pytest.approx(ranked(full, objective), rel=1e-9)
    assert found.complete
    counts = found.counts
    assert counts.candidates == full.counts.candidates
    assert counts.candidates - sum(counts.removed.values()) == counts.feasible
    assert counts.evaluated <= full.counts.evaluated
    if found.costs is None:
        assert found.gap is None
        assert (found.smallest is None) == (full.smallest is None)
        if found.smallest:
            assert found.smallest.memory_bytes == pytest.approx(full.smallest.memory_bytes)
    else:
        assert found.gap == 0
        assert found.bound == pytest.approx(ranked(full, objective)[0])


def test_a_field_that_is_yet_to_follow_from_others_rules_no_zero_stage_out():
    """Without overlap_grad_reduce the gather overlaps nothing either, whatever the ZeRO stage."""
    choose = {"overlap_grad_reduce": [0], "cp": [1], "micro_batch": [1], "virtual_stages": [1]}
    full = rank_plans(task("dense", 8), Ranking(choose=choose, headroom=0.1, top=1))
    options = Ranking(backend="branch-and-bound", choose=choose, headroom=0.1, top=1)
    assert ranked(rank_plans(task("dense", 8), options), "step-time") == pytest.approx(
        ranked(full, "step-time"), rel=1e-9
    )


def gpt3():
    cluster = Cluster.profile("a100-80gb-sxm", gpus=1024)
    return Task(Model.preset("gpt3-175b"), cluster, sequence=2048, global_batch=1536)


def test_gpt3_on_1024_gpus():
    full = rank_plans(gpt3())
    found = rank_plans(gpt3(), Ranking(backend="branch-and-bound"))
    assert ranked(found, "step-time") == pytest.approx(ranked(full, "step-time"), rel=1e-12)
    assert str(found.plans[0]) == str(full.plans[0])
    assert found.counts.evaluated < full.counts.evaluated / 10
    for name in branch_and_bound.BOUND_NAMES:
        assert found.counts.removed[name] > 0


MANY = {
    "first_stage_layers": range(25),
    "last_stage_layers": range(25),
    "micro_batch": [1, 2, 3, 4, 6, 8],
    "zero": [0, 1, 2, 3],
    "precision": ["bf16", "fp16"],
    "optimizer": ["adam", "sgd"],
    "overlap_p2p": [0, 1],
    "overlap_param_gather": [0, 1],
}
"""Axes that make a space too large to enumerate here."""


def test_a_space_too_large_to_enumerate():
    question = task("dense", 16)
    found = rank_plans(question, Ranking(backend="branch-and-bound", choose=MANY, top=1))
    assert found.counts.candidates > 10**9
    assert found.complete
    assert found.gap == 0
    assert found.counts.evaluated < 10**5
    part = {**MANY, "first_stage_layers": [0], "last_stage_layers": [0]}
    balanced = rank_plans(question, Ranking(choose=part, top=1))
    assert found.best.step_seconds <= balanced.best.step_seconds * (1 + 1e-12)


@pytest.mark.parametrize("budget", [1, 20, 50])
def test_a_budget_ends_with_a_bound_and_a_gap(budget):
    full = rank_plans(gpt3())
    part = rank_plans(gpt3(), Ranking(backend="branch-and-bound", budget=budget))
    assert not part.complete
    assert part.counts.evaluated == budget
    assert part.bound <= full.best.step_seconds
    if part.best:
        assert part.bound == pytest.approx((1 - part.gap) * part.best.step_seconds)
        assert 0 <= part.gap < 1


def test_a_time_limit_ends_with_a_bound():
    full = rank_plans(gpt3())
    part = rank_plans(gpt3(), Ranking(backend="branch-and-bound", time_limit=1e-9))
    assert not part.complete
    assert part.counts.evaluated == 0
    assert part.bound <= full.best.step_seconds


def test_a_large_enough_budget_changes_nothing():
    asked = SearchOptions(limit=6e10, top=4)
    space = Space.of(task("dense"), {"micro_batch": [1, 2]})
    free = branch_and_bound.search(space, asked)
    bounded = branch_and_bound.search(space, replace(asked, budget=free.counts.evaluated))
    assert bounded.complete
    assert vars(bounded.counts) == vars(free.counts)
    assert bounded.costs.step.tolist() == free.costs.step.tolist()


def test_an_interrupt_keeps_the_best_so_far_and_its_bound():
    calls = []

    def interrupt(costed):
        calls.append(costed)
        if costed:
            raise KeyboardInterrupt

    full = rank_plans(gpt3())
    part = rank_plans(gpt3(), Ranking(backend="branch-and-bound", progress=interrupt))
    assert calls == sorted(calls)
    assert not part.complete
    assert part.bound <= full.best.step_seconds <= part.best.step_seconds * (1 + 1e-12)


def test_exhaustive_proves_no_bound():
    space = Space.of(task("dense"), {"tp": [8], "micro_batch": [1]})
    result = exhaustive.search(space, SearchOptions(limit=8e10, top=1))
    assert result.bound is None
    assert result.gap is None


def test_placements_are_known_by_their_fields_and_by_no_fewer():
    space = Space.of(task("dense", 8))
    assert Relaxation(space, frozenset(PLACEMENT_FIELDS)).placement_known
    assert not Relaxation(space, frozenset(PLACEMENT_FIELDS[1:])).placement_known


@pytest.mark.parametrize(
    ("step", "memory", "may"),
    [
        (1.0, 8, True),
        (1.0, 9, False),
        (1.1, 8, False),
        # What surely fits may be as slow as the best that does.
        (1.1, 6, True),
        (1.5, 6, True),
        (1.5, 6.1, False),
        (1.6, 6, False),
        (0.9, 8, True),
    ],
)
def test_what_bounds_allow_to_be_as_good_as_what_is_known_may_enter(step, memory, may):
    """1 s in 8 bytes, and 1.5 s in 6, are known."""
    options = SearchOptions(limit=8, safe_limit=6, top=1)
    tree = branch_and_bound._Tree(Space.of(task("dense", 8)), options, 1.0, 1.5)
    assert tree._may_enter(np.array([step]), np.array([float(memory)])).tolist() == [may]
    alone = branch_and_bound._Tree(Space.of(task("dense", 8)), replace(options, safe_limit=None), 1)
    assert alone._may_enter(np.array([1.1]), np.array([6.0])).tolist() == [False]


@pytest.mark.parametrize(
    ("rows", "largest", "sizes"),
    [(64, 99, [64]), (65, 99, [64, 1]), (200, 999, [64, 128, 8]), (263, 99, [64, 99, 99, 1])],
)
def test_boxes_double_up_to_the_largest_and_the_best_rows_come_first(
    rows, largest, sizes, monkeypatch
):
    monkeypatch.setattr(branch_and_bound, "LARGEST_BOX", largest)
    tree = branch_and_bound._Tree(Space.of(task("dense", 8)), SearchOptions(limit=1.0, top=1))
    tree.queue.clear()
    bounds = np.random.default_rng(0).permutation(rows).astype(float)
    columns = {name: bounds for name in branch_and_bound.BOUND_NAMES}
    tree._push_in_boxes(1, PartialPlans(columns, rows))
    boxes = [branch_and_bound.heapq.heappop(tree.queue) for _ in sizes]
    assert not tree.queue
    assert [box.plans.rows for box in boxes] == sizes
    ordered = np.concatenate([box.plans.columns[branch_and_bound.STEP_BOUND] for box in boxes])
    assert ordered.tolist() == [*range(rows)]
    # Of boxes with one bound the youngest is first.
    for depth in (2, 3):
        tree._push(depth, boxes[0].plans)
    assert [branch_and_bound.heapq.heappop(tree.queue).depth for _ in range(2)] == [3, 2]
