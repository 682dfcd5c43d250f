"""Every point is a legal plan, every legal plan a point, and every move legal."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.search.result.objective import BARRIER, guided
from plan3d.search.result.options import SearchOptions
from plan3d.search.sampling.two_phase import EqualStagesProblem
from plan3d.search.space.axes import DERIVED
from plan3d.search.space.problem import (
    construct,
    coordinates,
    draw,
    encode,
    highest_coordinates,
    nearest_points,
    place_roles,
    random_step,
)
from plan3d.search.space.space import Space
from plan3d.search.space.staged_problem import (
    EIGHTHS,
    FIRST_STAGE,
    PER_STAGE,
    ZERO,
    StagedProblem,
    _with_missing_stages,
    count_layouts,
    distinct_shares,
    heavier_layers,
    move_along,
    place_of,
)
from plan3d.search.space.uniform_problem import DEAD_END, EXCHANGE_AXES, UniformProblem, diagram
from plan3d.search.stage_dp import dynamic_programming
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.fields import AXES, EXPANSION
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


@cache
def task(model="gpt3-1.3b", gpus=8, batch=12, cluster="h100-sxm"):
    return Task(
        Model.preset(model),
        Cluster.profile(cluster, gpus=gpus),
        sequence=2048,
        global_batch=batch,
    )


SPACES = {
    "default": (task(), None),
    "moe": (task("mixtral-8x7b", 16, 32), {"micro_batch": [1, 2], "etp": [1, 2]}),
    "odd": (task("gpt3-125m", 24, 48), {"overlap_param_gather": [0, 1], "precision": [0, 1]}),
    "schedules": (
        task("gpt3-1.3b", 16, 64),
        {"schedule": [0, 2, 5], "virtual_stages": [1], "cp": [1], "first_stage_layers": [0, 3]},
    ),
}
PROBLEMS = {
    **{name: UniformProblem(Space.of(*question)) for name, question in SPACES.items()},
    "staged": StagedProblem.of(task("llama-7b", 16, 64)),
    "staged odd": StagedProblem.of(task("gpt3-125m", 24, 48), {"pp": [1, 2, 6]}),
    "staged moe": StagedProblem.of(task("mixtral-8x7b", 32, 32)),
    "alike": EqualStagesProblem(StagedProblem.of(task("llama-7b", 16, 64))),
}
problems = st.sampled_from(sorted(PROBLEMS))
seeds = st.integers(0, 2**32 - 1)


def all_legal(problem, points):
    """The plans are legal, and the masks along the way allow what was chosen."""
    assert legal_rows(problem.plans(points), problem.task).all()
    for i in range(points.shape[1]):
        mask = problem.legal(points[:, :i])
        assert mask.shape == (len(points), len(problem.variables[i].values))
        assert mask[np.arange(len(points)), points[:, i]].all()


@given(name=problems, seed=seeds)
def test_every_sample_is_a_legal_plan(name, seed):
    problem = PROBLEMS[name]
    all_legal(problem, draw(problem, 40, np.random.default_rng(seed)))


@given(
    model=st.sampled_from(["gpt3-125m", "gpt3-13b", "llama-7b", "mixtral-8x7b"]),
    gpus=st.sampled_from([1, 2, 8, 24, 40, 128]),
    batch=st.integers(1, 300),
    seed=seeds,
)
def test_samples_of_any_task_are_legal(model, gpus, batch, seed):
    question = task(model, gpus, batch)
    for problem in (UniformProblem(Space.of(question)), StagedProblem.of(question)):
        if problem.size:
            all_legal(problem, draw(problem, 20, np.random.default_rng(seed)))


@given(name=problems, seed=seeds)
def test_moves_are_legal_and_usually_go_somewhere(name, seed):
    problem, random = PROBLEMS[name], np.random.default_rng(seed)
    points = draw(problem, 40, random)
    moved = problem.neighbours(points, random)
    all_legal(problem, moved)
    assert (moved != points).any(axis=1).mean() > 0.9


@given(name=problems, seed=seeds)
def test_vectors_of_points_give_them_back(name, seed):
    problem, random = PROBLEMS[name], np.random.default_rng(seed)
    points = draw(problem, 20, random)
    vectors = encode(problem, points)
    assert vectors.shape == (20, coordinates(problem)[-1].stop)
    assert (nearest_points(problem, vectors) == points).all()
    assert (vectors <= highest_coordinates(problem)).all()
    last = [np.full(1, len(variable.values) - 1) for variable in problem.variables]
    ends = encode(problem, np.stack(last, axis=1))[0]
    assert ((highest_coordinates(problem) == ends) | (ends == 0)).all()
    anywhere = random.uniform(-2, highest_coordinates(problem) + 2, vectors.shape)
    all_legal(problem, nearest_points(problem, anywhere))


@given(name=problems, seed=seeds)
def test_a_step_changes_one_variable_to_another_legal_value(name, seed):
    problem, random = PROBLEMS[name], np.random.default_rng(seed)
    points = draw(problem, 20, random)
    steps = zip(points, *random_step(problem, points, random), strict=True)
    for point, variable, index in not_empty(steps):
        mask = problem.legal(point[None, :variable])[0]
        assert mask[index]
        assert index != point[variable]
        if problem.variables[variable].ordered:
            low, high = sorted((index, point[variable]))
            assert not mask[low + 1 : high].any()


def every_point(problem):
    """All legal points, by walking the masks."""
    points = np.zeros((1, 0), np.intp)
    for _ in problem.variables:
        row, value = np.nonzero(problem.legal(points))
        points = np.column_stack([points[row], value])
    return points


@pytest.mark.parametrize("name", SPACES)
def test_uniform_points_are_the_space(name):
    problem = PROBLEMS[name]
    points = every_point(problem)
    assert len(points) == problem.size == sum(plans.rows for plans in problem.space.chunks())
    made = problem.plans(points)
    rows = set(zip(*(getattr(made, axis).tolist() for axis in AXES), strict=True))
    assert len(rows) == len(points)
    for plans in problem.space.chunks():
        columns = (getattr(plans, axis).tolist() for axis in AXES)
        assert rows.issuperset(zip(*columns, strict=True))


def test_the_diagram_has_no_dead_end():
    for name in SPACES:
        found = diagram(PROBLEMS[name].space)
        reached = {0}
        for arcs in not_empty(found.arcs):
            assert all((arcs[node] != DEAD_END).any() for node in not_empty(reached))
            reached = {int(n) for node in reached for n in arcs[node] if n != DEAD_END}


def test_a_space_without_legal_plans_is_empty():
    problem = UniformProblem(Space.of(task(), {"dp": [5]}))
    assert problem.size == 0
    assert not problem.legal(np.zeros((1, 0), np.intp)).any()


class Reads:
    """Columns that note which of them are read."""

    def __init__(self):
        self.names = set()

    def __getattr__(self, name):
        self.__dict__["names"].add(name)
        return np.array([2])


@pytest.mark.parametrize("name", DERIVED)
def test_derived_fields_read_what_they_say(name):
    columns = Reads()
    DERIVED[name].compute(columns, task())
    assert columns.names == set(DERIVED[name].reads)
    last = max(map(EXPANSION.index, DERIVED[name].reads), default=-1)
    assert last < EXPANSION.index(name)


@pytest.mark.parametrize(("pp", "chunks", "hides"), [(1, 1, 0), (2, 1, 0), (2, 2, 1), (4, 2, 1)])
def test_exchanges_hide_with_multi_token_prediction_only_in_a_pipeline(pp, chunks, hides):
    asked = task("deepseek-v3", 64, 512)
    plan = resolve(Plan(ep=8, pp=pp, virtual_stages=chunks), 64)
    assert asked.model.mtp_layers == 1
    assert DERIVED["overlap_ep"].compute(plan, asked) == hides


FEW = replace(Model.preset("gpt3-1.3b"), order=(0,) * 5)
TINY = StagedProblem(Task(FEW, task(gpus=2).cluster, sequence=2048, global_batch=2), (1, 2))


def test_staged_points_are_counted():
    points = every_point(TINY)
    assert len(points) == TINY.size
    plans = TINY.plans(points)
    assert legal_rows(plans, TINY.task).all()
    assert len({str(plan) for plan in plans}) == len(points)


def test_staged_plans_are_the_uniform_ones_and_more():
    uniform = Space.of(TINY.task, {"virtual_stages": [1], "cp": [1]})
    one = min(simulate(TINY.task, plans).step.min() for plans in uniform.chunks())
    other = simulate(TINY.task, TINY.plans(every_point(TINY))).step.min()
    assert other <= one * (1 + 1e-12)


def test_the_dynamic_program_proves_the_optimum_of_staged_plans():
    """Five layers: every cut is within the window, every number of layers a share."""
    costs = simulate(TINY.task, TINY.plans(every_point(TINY)))
    for share in (0.02, 0.3, 1.0):
        limit = float(np.quantile(costs.memory_total, share)) * (1 + 1e-9)
        proof = solved(TINY, limit)
        best = costs.step[costs.memory_total <= limit].min()
        assert proof.complete
        assert proof.best.step_seconds == pytest.approx(best, rel=1e-9)


@given(name=st.sampled_from(["staged", "staged odd"]), seed=seeds)
@settings(deadline=None, max_examples=5)
def test_no_staged_plan_is_better_than_the_proof(name, seed):
    problem = PROBLEMS[name]
    costs = simulate(problem.task, problem.plans(draw(problem, 300, np.random.default_rng(seed))))
    assert costs.step.min() >= optimum_of(name) * (1 - 1e-9)


@cache
def optimum_of(name):
    return solved(PROBLEMS[name], np.inf).best.step_seconds


def solved(problem, limit):
    """The dynamic program's answer for a set around a staged problem."""
    space = Space.of(problem.task, problem.constraints)
    return dynamic_programming.search(space, SearchOptions(limit=limit, top=1))


def test_recompute_grows_from_none_to_full():
    shares = np.flatnonzero(distinct_shares(np.array([3]), 3)[0])
    light = np.maximum(shares - 1, 0) // EIGHTHS
    amounts = light * 3 + heavier_layers(shares, np.array([3]))
    assert amounts.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_more_than_eight_eighths_are_of_the_next_mode():
    """Twelve eighths of a stage: half of it in the heaviest of three modes, half in the one below;
    four: half in the middle one, half in none."""
    plain = replace(task("llama-7b", 16, 64), software=software_profile("deepspeed"))
    problem = StagedProblem.of(plain, {"pp": [1]})
    assert problem.modes == (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    recompute = [v.name for v in problem.variables].index("recompute 1")
    points = draw(problem, 400, np.random.default_rng(0))
    shares = np.array(problem.variables[recompute].values)[points[:, recompute]]
    for share, expected in ((12, {2: 16, 1: 16}), (4, {1: 16, 0: 16})):
        runs = problem.plans(points[shares == share][:1]).segments
        pairs = zip(runs.recompute[runs.is_run], runs.layers[runs.is_run], strict=True)
        assert dict(pairs) == expected


def test_staged_moves_cover_the_primitives():
    problem, random = PROBLEMS["staged"], np.random.default_rng(0)
    points = draw(problem, 400, random)
    moved = problem.neighbours(points, random)
    names = [variable.name for variable in problem.variables]
    changed = {names[i] for i in np.flatnonzero((moved != points).any(axis=0))}
    assert {"pp", "micro_batches"} <= changed
    assert {"end 1", "tp 1", "zero 1", "recompute 1", "tp 2", "recompute 2"} <= changed
    both = (moved != points)[:, [names.index(f"zero {i}") for i in (1, 2)]]
    assert both.all(axis=1).any()
    assert (both.any(axis=1) & ~both.all(axis=1)).any()


def test_a_rank_keeps_the_sequences_of_its_micro_batch_when_all_tp_or_pp_change():
    """In moves of the plan's own variables and of all stages, where that is legal."""
    problem, random = EqualStagesProblem(PROBLEMS["staged"]), np.random.default_rng(0)
    points = draw(problem, 300, random)
    moved = problem.neighbours(points, random)
    changed = np.flatnonzero((moved != points)[:, [0, 2]].any(axis=1))
    before, after = (problem.plans(table[changed]).micro_batch for table in (points, moved))
    assert (before == after).mean() > 0.8


def test_what_does_not_fit_is_worse_than_all_that_does_and_ordered_by_excess():
    problem = PROBLEMS["default"]
    costs = simulate(task(), problem.plans(every_point(problem)))
    limit = float(np.median(costs.memory_total))
    scores, fits = guided(costs, "step-time", limit), costs.memory_total <= limit
    assert scores[fits].max() < BARRIER <= scores[~fits].min()
    assert np.exp(scores[fits]) == pytest.approx(costs.step[fits])
    order = np.argsort(scores[~fits])
    assert (np.diff(costs.memory_total[~fits][order]) >= 0).all()


def test_a_choice_sees_the_prefix_and_the_mask():
    problem, seen = PROBLEMS["default"], []

    def first(variable, prefix, mask):
        seen.append((variable, prefix.shape, mask.shape))
        return np.argmax(mask, axis=1)

    points = construct(problem, 3, first)
    assert (points == points[0]).all()
    assert [variable for variable, _, _ in seen] == list(range(len(problem.variables)))
    assert [prefix for _, prefix, _ in seen] == [(3, i) for i in range(len(problem.variables))]


def test_missing_stages_are_like_the_last_one():
    """Of three stages the first alone, or the first two, are there."""
    width = FIRST_STAGE + 3 * PER_STAGE
    points = np.arange(2 * width).reshape(2, width)
    found = _with_missing_stages(points, np.array([0, 1]))
    stages = points[:, FIRST_STAGE:].reshape(2, 3, PER_STAGE)
    expected = np.stack([stages[0, [0, 0, 0]], stages[1, [0, 1, 1]]])
    assert (found[:, FIRST_STAGE:].reshape(2, 3, PER_STAGE) == expected).all()
    assert (found[:, :FIRST_STAGE] == points[:, :FIRST_STAGE]).all()


@pytest.mark.parametrize(
    ("even_ends", "shares", "count"),
    [
        # One stage of three layers; two of three: one and two, or two and one.
        ([3], [0, 2, 3, 5], 5),
        ([1, 3], [0, 2, 3, 5], 2 * 3 + 3 * 2),
        ([1, 2, 3], [0, 2, 3, 5], 8),
    ],
)
def test_layouts_are_counted_with_their_shares(even_ends, shares, count):
    assert count_layouts(even_ends, shares) == count


def test_stages_that_go_along_in_a_move_are_all_on_a_side():
    """Of four stages the second: alone in 0.4 and 0.6 x 0.3 x 0.3 of the moves, with the first or
    with both behind it in 0.6 x 0.7 x 0.3, with all in 0.6 x 0.7 x 0.7."""
    rows = 20_000
    points = np.zeros((rows, FIRST_STAGE + 4 * PER_STAGE), np.intp)
    place = np.full(rows, place_of(1, ZERO))
    moved, _ = move_along(points, place, place * 0 + 1, place * 0 + 3, np.random.default_rng(0))
    changed = moved[:, FIRST_STAGE:].reshape(rows, 4, PER_STAGE)[:, :, ZERO]
    patterns, counts = np.unique(changed, axis=0, return_counts=True)
    shares = {
        tuple(pattern): n / rows for pattern, n in zip(patterns.tolist(), counts, strict=True)
    }
    expected = {(0, 1, 0, 0): 0.454, (1, 1, 0, 0): 0.126, (0, 1, 1, 1): 0.126, (1, 1, 1, 1): 0.294}
    assert shares == pytest.approx(expected, abs=0.02)


def test_axes_that_are_exchanged_move_against_each_other():
    """Of tp, cp and pp one grows while another shrinks."""
    problem, random = PROBLEMS["default"], np.random.default_rng(0)
    points = draw(problem, 2000, random)
    moved = problem.neighbours(points, random) - points
    own = [i for i, v in enumerate(problem.variables) if v.name in EXCHANGE_AXES]
    signs = np.sign(moved[:, own])
    two = signs[(signs != 0).sum(axis=1) == 2]
    opposite = np.count_nonzero(two.sum(axis=1) == 0)
    assert len(two) > 50
    assert opposite > 0.9 * len(two)


def test_stages_are_at_most_the_layers():
    """12 layers on 24 GPUs."""
    asked = task("gpt3-125m", 24, 48)
    assert StagedProblem.of(asked).stages == (1, 2, 3, 4, 6, 8, 12)
    assert StagedProblem.of(asked, {"pp": [12]}).stages == (12,)
    with pytest.raises(InputError, match="pp=24 must divide 24 GPUs and be at most 12"):
        StagedProblem.of(asked, {"pp": [24]})
    with pytest.raises(InputError, match="pp=5 must divide 24 GPUs"):
        StagedProblem.of(asked, {"pp": [5]})


@pytest.mark.parametrize(("pp", "nearest"), [(5, "4, 6"), (7, "6, 8"), (24, "12")])
def test_stages_that_are_refused_name_the_nearest_that_are_not(pp, nearest):
    """12 layers on 24 GPUs."""
    with pytest.raises(InputError, match=f"nearest: {nearest}$"):
        StagedProblem.of(task("gpt3-125m", 24, 48), {"pp": [pp]})


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_every_place_of_a_vector_has_the_role_of_its_variable(name):
    problem = PROBLEMS[name]
    roles, places = place_roles(problem), coordinates(problem)
    assert len(roles) == places[-1].stop
    for variable, place in zip(not_empty(problem.variables), places, strict=True):
        assert set(roles[place]) == {variable.role}


def test_micro_batches_of_stages_have_up_to_64_sequences():
    """Of 512 sequences on one replica 8 micro-batches have 64 each, 4 of them 128."""
    problem = StagedProblem.of(task("gpt3-125m", 8, 512))
    one_replica = problem.strategies[problem.stages.index(8), :, 0, 0]
    batches = [m for m in range(1, 513) if 512 % m == 0]
    assert next(m for m, ok in zip(batches, one_replica, strict=True) if ok) == 8
