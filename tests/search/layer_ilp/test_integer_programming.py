"""The integer program's plan is the best there is, within memory, and never a worse one."""

from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.search.layer_ilp import integer_programming, layer_bounds
from plan3d.search.layer_ilp.cp_sat import solve
from plan3d.search.layer_ilp.layer_bounds import fastest_stages
from plan3d.search.layer_ilp.layer_program import LayerProgram, counts_of, proposals
from plan3d.search.layer_ilp.layer_step import StepProgram, _is_above_line
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.options import Deadline, SearchOptions
from plan3d.search.space.space import Space
from plan3d.search.stage_dp import dynamic_programming
from plan3d.search.stages.pipeline import pipelines
from plan3d.search.stages.stage_plans import with_explicit_stages
from plan3d.search.stages.stage_space import SHARED_FIELDS
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan, from_columns, resolve
from plan3d.simulator.plan.stage_layout import concat_segments, segments_of_stages
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.evaluate import evaluate, simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

FIXED = {
    "virtual_stages": [1],
    "cp": [1],
    "ep": [1],
    "overlap_tp": [0],
    "overlap_grad_reduce": [1],
    "overlap_param_gather": [1],
}


@cache
def task(name, layers, gpus=8, batch=8, software="megatron-core"):
    """A few layers of a model."""
    whole = Model.preset(name)
    order = whole.order[:layers]
    if len(whole.kinds) > 1:
        order = tuple(i % len(whole.kinds) for i in range(layers))
    model = replace(whole, order=order)
    cluster = Cluster.profile("h100-sxm", gpus=gpus)
    stack = software_profile(software)
    return Task(model, cluster, sequence=2048, global_batch=batch, software=stack)


def choices(choose):
    """Axes of a small space."""
    parallel = int(max(choose["tp"]) > 1)
    return {**FIXED, "sequence_parallel": [parallel], "micro_batch": [1, 2], **choose}


def _cut(strategies, layers, pp):
    """Strategies of every layer, in stages of at least one layer."""
    for inner in combinations(range(1, layers), pp - 1):
        for chosen in product(strategies, repeat=layers):
            yield [chosen[a:b] for a, b in pairwise((0, *inner, layers))]


def _in_turn(order, stages):
    """Whether the layers of a stage take its shards one after another, kind by kind.

    Going back to a strategy never saves work; it only cuts weights into more collectives.
    """
    layers = iter(order)
    for stage in stages:
        shards = [(next(layers), (run["tp"], run["zero"])) for run in stage]
        turns = permutations({shard for _, shard in shards})
        if not any(_follows(shards, turn) for turn in turns):
            return False
    return True


def _follows(shards, turn):
    kinds = {kind for kind, _ in shards}
    each = ([turn.index(shard) for k, shard in shards if k == kind] for kind in kinds)
    return all(places == sorted(places) for places in each)


def axes_of(question, choose):
    """One value of every field that stages share."""
    shared = Plan(schedule=0, dp=1, zero=0, overlap_grad_reduce=1, overlap_param_gather=1)
    shared = replace(shared, sequence_parallel=choose["sequence_parallel"][0], overlap_p2p=0)
    shared = resolve(shared, question.gpus)
    return {**Space.of(question, choose).axes, **{n: (getattr(shared, n),) for n in SHARED_FIELDS}}


def every_plan(question, choose):
    """All plans: stages, micro-batches, cuts, and a strategy for each layer."""
    for pipeline in pipelines(question, axes_of(question, choose)):
        layers = question.model.layers
        own = np.argwhere(pipeline.legal).tolist()
        strategies = [
            {"tp": int(pipeline.tp[s]), "dp": int(pipeline.dp[s]), "zero": z}
            | {"recompute": pipeline.recompute[r]}
            for s, r, z in own
        ]
        rows = [
            segments_of_stages([[{"layers": 1, **s} for s in stage] for stage in stages])
            for stages in _cut(strategies, layers, pipeline.pp)
            if _in_turn(question.model.order, stages)
        ]
        columns = pipeline.columns(np.full(len(rows), own[0][0]))
        yield from_columns(columns, segments=concat_segments(rows))


TWO = {"micro_batch": [2]}
CASES = {
    "recompute": ("gpt3-1.3b", 5, {"pp": [2], "tp": [2], "recompute": [0, 1, 2], "zero": [1]}),
    "deep": ("gpt3-1.3b", 8, {"pp": [4], "tp": [1], "recompute": [0, 2], "zero": [1]} | TWO),
    "tp": ("llama-7b", 4, {"pp": [1, 2], "tp": [1, 2, 4], "recompute": [0, 2], "zero": [1]}),
    "zero": ("llama-7b", 4, {"pp": [2], "tp": [2], "recompute": [0, 2], "zero": [0, 3]}),
    "zero 2": ("llama-7b", 4, {"pp": [2, 4], "tp": [1], "recompute": [0, 2], "zero": [1, 2]}),
    "kinds": ("deepseek-v3", 4, {"pp": [2, 4], "tp": [2], "recompute": [0, 2], "zero": [1]}),
    "kinds on one rank": (
        "deepseek-v3",
        4,
        {"pp": [1], "tp": [2], "recompute": [0, 2], "zero": [1]},
    ),
    "tied": ("gpt3-125m", 4, {"pp": [1, 2], "tp": [1], "recompute": [0, 2], "zero": [0, 1]}),
}


QUICK = {
    0.0: ("recompute", "kinds", "tied"),
    0.4: ("recompute", "tp", "zero", "zero 2", "kinds on one rank", "tied"),
}
"""Cases that are searched with the other tests, by the share of memory that there is beyond the
least; all are with -m slow."""


@cache
def brute_force(name):
    """Step seconds and bytes of every plan of a case."""
    model, layers, choose = CASES[name]
    question = task(model, layers)
    steps, sizes = [], []
    for plans in every_plan(question, choices(choose)):
        assert legal_rows(plans, question).all()
        costs = simulate(question, plans)
        steps.append(costs.step)
        sizes.append(costs.memory_total)
    return np.concatenate(steps), np.concatenate(sizes)


@pytest.mark.parametrize(
    ("name", "room"),
    [
        pytest.param(name, room, marks=() if name in QUICK[room] else pytest.mark.slow)
        for name in CASES
        for room in QUICK
    ],
)
def test_the_search_is_brute_force(name, room):
    steps, sizes = brute_force(name)
    limit = (sizes.min() + room * (sizes.max() - sizes.min())) * (1 + 1e-9)
    best = steps[sizes <= limit].min()
    model, layers, choose = CASES[name]
    question = task(model, layers)
    space = Space.of(question, choices(choose))
    asked = SearchOptions(limit=limit, top=1)
    found = integer_programming.search(space, asked, tolerance=0.0, patience=10**6)
    # Only the dynamic program has stages of the head alone.
    best = min(best, dynamic_programming.search(space, asked).costs.step[0])
    assert found.complete
    assert found.costs.step[0] == pytest.approx(best, rel=1e-9)
    assert found.bound == pytest.approx(best, rel=1e-9)
    assert found.costs.memory_total[0] <= limit
    assert legal_rows(found.costs.plans, question).all()


@pytest.mark.parametrize("share", np.linspace(0.1, 0.9, 5).tolist())
def test_which_layers_keep_their_activations_counts_where_memory_is_tight(share):
    """The ends of a model are with its first and last layer, multi-token prediction among them:
    how much they keep depends on which layers recompute, not only on how many."""
    steps, sizes = brute_force("kinds on one rank")
    limit = float(np.quantile(sizes, share)) * (1 + 1e-9)
    model, layers, choose = CASES["kinds on one rank"]
    space = Space.of(task(model, layers), choices(choose))
    asked = SearchOptions(limit=limit, top=1)
    found = integer_programming.search(space, asked, tolerance=0.0)
    assert found.complete
    assert found.costs.step[0] == pytest.approx(steps[sizes <= limit].min(), rel=1e-9)


def uniform_row(question, **fields):
    usual = {"schedule": 0, "overlap_p2p": 0, **fields}
    return resolve(Plan(**usual), question.gpus)


def objectives(question, choose, seed=7):
    """The objective of the program of each pipeline for layers drawn at random, and their step."""
    draw = np.random.default_rng(seed)
    for pipeline in not_empty(pipelines(question, axes_of(question, choices(choose)))):
        strategies = np.argwhere(pipeline.legal)
        layers = question.model.layers
        inner = draw.choice(np.arange(1, layers), pipeline.pp - 1, replace=False)
        cuts = np.array([0, *sorted(inner), layers])
        counts = {}
        for layer, kind in enumerate(question.model.order):
            stage = int(np.searchsorted(cuts, layer, side="right")) - 1
            key = (stage, *draw.choice(strategies).tolist(), kind)
            counts[key] = counts.get(key, 0) + 1
        plans = proposals(pipeline, counts)
        assert all(counts_of(pipeline, plan) == counts for plan in not_empty(plans))
        costs = simulate(question, plans)
        program = LayerProgram(pipeline, float(costs.memory_total.max()), Deadline())
        step = StepProgram(program, float(costs.step.min()))
        for key, n in program.layers.items():
            program.model.add(n == counts.get(key, 0))
        answer = solve(program.model)
        assert answer.optimal
        assert program.solution(answer.value) == counts
        yield answer.value(step.objective) * step.units.size, costs.step.min()


@pytest.mark.parametrize("name", CASES)
def test_a_program_is_below_what_the_simulator_says(name):
    """By what it leaves out: a tenth where experts exchange tokens, else a fiftieth."""
    model, layers, choose = CASES[name]
    least = 0.84 if name.startswith("kinds") else 0.98
    for objective, seconds in not_empty(objectives(task(model, layers), choose)):
        assert least * seconds <= objective <= seconds * (1 + 1e-9)


EXPERTS = {"pp": [1, 2], "tp": [2], "ep": [2], "recompute": [0, 2], "zero": [0, 1]}
APART = {"overlap_grad_reduce": [0], "overlap_param_gather": [0]}
EXCHANGES = {
    "experts": ("deepseek-v3", EXPERTS),
    "experts sharded": ("mixtral-8x7b", EXPERTS | {"tp": [1], "zero": [1, 3]}),
    "experts apart": ("mixtral-8x7b", EXPERTS | {"tp": [1], "zero": [1, 3]} | APART),
    "zero": ("llama-7b", CASES["zero"][2]),
    "zero 2": ("llama-7b", CASES["zero 2"][2]),
    "zero 2 apart": ("llama-7b", CASES["zero 2"][2] | APART | {"overlap_param_gather": [1]}),
    "one shard apart": ("llama-7b", {"tp": [1], "zero": [0, 1], "recompute": [0]} | APART),
}


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_program_has_nearly_all_of_exchanges_on_a_slow_network(name):
    """What gradients and parameters take between nodes of two GPUs is most of a step."""
    model, choose = EXCHANGES[name]
    slow = Cluster.profile("h100-sxm", 8, gpus_per_node=2, inter_node_bandwidth=2e9)
    question = replace(task(model, 4), cluster=slow)
    for objective, seconds in not_empty(objectives(question, {"pp": [1, 2], **choose})):
        assert 0.95 * seconds <= objective <= seconds * (1 + 1e-9)


def test_kinds_that_no_layer_uses_bound_nothing():
    """The first layers of DeepSeek-V3 are dense: its blocks of experts are then in no layer."""
    question = task("deepseek-v3", 4)
    question = replace(question, model=replace(question.model, order=(0, 0, 0, 0), mtp_layers=0))
    choose = {"pp": [2], "tp": [2], "ep": [1, 2], "recompute": [0], "zero": [1]}
    options = SearchOptions(limit=question.cluster.accelerator.memory, top=1)
    found = integer_programming.search(Space.of(question, choices(choose)), options)
    assert found.complete
    assert 0 < found.bound <= found.costs.step[0]


def test_a_hint_is_a_whole_solution_or_none():
    """Values of all variables, of which the solver is told those of the layers."""
    model, layers, choose = CASES["deep"]
    question = task(model, layers)
    for pipeline in not_empty(pipelines(question, axes_of(question, choices(choose)))):
        key = (*np.argwhere(pipeline.legal)[-1].tolist(), 0)
        counts = {(stage, *key): n for stage, n in enumerate([1, 3, 2, 2])}
        costs = simulate(question, proposals(pipeline, counts))
        for room, fits in ((1.0, True), (0.9, False)):
            program = LayerProgram(pipeline, room * costs.memory_total.max(), Deadline())
            step = StepProgram(program, float(costs.step.min()))
            program.hint(counts)
            hinted = program.model.proto.solution_hint
            values = dict(zip(hinted.vars, hinted.values, strict=True))
            assert len(values) == fits * len(program.model.proto.variables)
            if fits:
                assert program.solution(lambda n, at=values: at[n.index]) == counts
                assert 0 < values[step.slowest.index] * step.units.size < costs.step.min()


@given(
    strategies=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4),
    room=st.integers(0, 30),
)
def test_fastest_stages_are_brute_force(strategies, room):
    seconds, size = (np.array(column, float) for column in zip(*strategies, strict=True))
    found = fastest_stages(seconds, size, 4, room, Deadline())
    for n in range(5):
        every = [np.sum([(0, 0), *chosen], axis=0) for chosen in product(strategies, repeat=n)]
        fits = [t for t, held in every if held <= room]
        assert found[n] == min(fits, default=np.inf)


def test_many_sums_are_merged_into_a_bound(monkeypatch):
    seconds, size = np.random.default_rng(1).random((2, 400))
    exact = fastest_stages(seconds, size, 20, 4.0, Deadline())
    monkeypatch.setattr(layer_bounds, "MOST_SUMS", 4)
    found = fastest_stages(seconds, size, 20, 4.0, Deadline())
    assert (found <= exact).all()
    assert (found < exact).any()
    assert (np.diff(found) > 0).all()


SMALL = {
    "virtual_stages": [1],
    "pp": [1, 2, 4],
    "tp": [1, 2],
    "micro_batch": [1, 2],
    "zero": [1],
    "cp": [1],
}


def small():
    return task("gpt3-1.3b", 6, batch=128)


def test_a_search_is_complete_only_within_its_tolerance():
    """With little patience pipelines are left before their bound is that near."""
    space = Space.of(small(), SMALL)
    options = SearchOptions(limit=0.07 * small().cluster.accelerator.memory, top=1)
    for tolerance in (1e-6, 1e-1):
        found = integer_programming.search(space, options, tolerance=tolerance, patience=1)
        assert found.complete == (found.gap <= tolerance * (1 + 1e-9))
    assert found.complete


TIGHT = 0.93
"""A headroom at which few plans fit."""


@cache
def stages_searched(headroom, **options):
    """The answer of the backend to a small question."""
    asked = {"backend": "integer-programming", "choose": SMALL, "headroom": headroom}
    return rank_plans(small(), Ranking(**asked, **options))


def test_the_backend_is_never_worse_than_uniform_plans_and_repeats_itself():
    one_chunk = {"virtual_stages": [1], "overlap_p2p": [0]}
    for headroom in (0.1, TIGHT):
        uniform = rank_plans(small(), Ranking(choose={**SMALL, **one_chunk}, headroom=headroom))
        found = stages_searched(headroom)
        assert found.best.step_seconds <= uniform.best.step_seconds * (1 + 1e-9)
        assert 0 <= found.gap <= 0.01
        assert found.complete or headroom > 0.9
        assert found.best.memory_bytes <= found.limit
        costs = evaluate(small(), Plan.parse(str(found.plans[0])))
        assert costs.step_seconds == pytest.approx(found.best.step_seconds, rel=1e-9)
    again = stages_searched.__wrapped__(TIGHT)
    assert found.costs.step.tolist() == again.costs.step.tolist()
    assert [str(p) for p in found.plans] == [str(p) for p in again.plans]


def test_cost_is_step_time_in_other_units():
    seconds = stages_searched(TIGHT)
    cost = stages_searched(TIGHT, objective="cost")
    assert str(cost.plans[0]) == str(seconds.plans[0])
    assert cost.bound == pytest.approx(seconds.bound * small().gpus)


@pytest.mark.parametrize("limits", [{"budget": 1}, {"time_limit": 1e-9}])
def test_a_limit_leaves_the_best_uniform_plan_and_a_bound(limits):
    full, part = stages_searched(TIGHT), stages_searched(TIGHT, **limits)
    assert not part.complete
    assert part.counts.evaluated == 1
    assert part.bound <= full.best.step_seconds <= part.best.step_seconds
    assert part.gap > 0


def test_an_interrupt_keeps_the_best_so_far():
    def interrupt(costed):
        raise KeyboardInterrupt

    asked = {"backend": "integer-programming", "choose": SMALL, "headroom": 0.93}
    part = rank_plans(small(), Ranking(**asked, progress=interrupt))
    assert not part.complete
    assert part.bound <= part.best.step_seconds


def test_it_is_proven_that_nothing_fits():
    found = rank_plans(small(), Ranking(backend="integer-programming", choose=SMALL, headroom=0.99))
    assert found.complete
    assert found.costs is None
    assert found.gap is None
    assert found.smallest.memory_bytes > found.limit


def test_uniform_plans_cost_the_same_as_segments():
    plans = uniform_row(small(), tp=2, pp=4).table()
    whole = simulate(small(), plans)
    cut = simulate(small(), next(with_explicit_stages(whole, 1)))
    assert cut.step == pytest.approx(whole.step, rel=1e-12)
    assert cut.memory_total == pytest.approx(whole.memory_total, rel=1e-12)


@pytest.mark.parametrize(
    ("last", "middle", "value", "above"),
    [
        # From 10 at 2 to 18 at 7: 13.2 at 4, 11.6 at 3.
        (18, 4, 13, False),
        (18, 4, 14, True),
        (18, 3, 11, False),
        (18, 3, 12, True),
        # To 20: 14 at 4. And down to 0: 6 at 4.
        (20, 4, 14, True),
        (20, 4, 13, False),
        (0, 4, 6, True),
        (0, 4, 5, False),
    ],
)
def test_a_value_is_above_a_line_or_below_it(last, middle, value, above):
    values = [0] * 8
    values[2], values[middle], values[7] = 10, value, last
    assert _is_above_line(values, 2, middle, 7) == above
