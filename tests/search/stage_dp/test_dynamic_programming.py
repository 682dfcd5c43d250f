"""The dynamic program's plan is the best of all plans of its set, and its bound a bound."""

from dataclasses import replace
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.search.exact.exhaustive import UniformPlans
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.options import SearchOptions
from plan3d.search.space.space import Space
from plan3d.search.stage_dp import dynamic_programming
from plan3d.search.stages.stage_space import has_bare_head, stage_space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.plan.stage_layout import Segments
from plan3d.simulator.plan.synchronisation import DEFAULT_POLICY
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.evaluate import evaluate, simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.blocks import ListedLayer
from plan3d.simulator.workload.model import Model, Network

MODELS = {
    "tied": ("gpt3-1.3b", (0,) * 5),
    "gated": ("llama-3.1-8b", (0,) * 5),
    "mixed": ("deepseek-v3", (0, 0, 1, 1)),
    "alternating": ("deepseek-v3", (0, 1, 0, 1)),
    "seven": ("gpt3-1.3b", (0,) * 7),
    "eight": ("llama-3.1-8b", (0,) * 8),
}
SMALL = ("alternating", "gated", "mixed", "tied")
"""Models whose plans can all be costed for any choice."""
LISTED = Network.from_layers(
    "listed",
    [
        ListedLayer(
            parameters=3_000_000 * (1 + i % 3),
            forward_flops=1e11 * (1 + i % 4),
            activation_bytes=5e7 * (1 + i % 2),
            boundary_bytes=4e6 * (5 - i),
        )
        for i in (0, 1, 2, 3, 3, 4)
    ],
)
"""Layers that differ in all they have, among them what they hand on."""
SLOW = 2e9
"""Bytes/s of a network on which reductions outlast the pipeline's drain."""


@cache
def task(name, gpus=8, batch=8, software="megatron-core", slow=None, bucket=1e6):
    cluster = Cluster.profile("h100-sxm", gpus, gpus_per_node=4, inter_node_bandwidth=slow)
    if name == "listed":
        return Task(LISTED, cluster, sequence=1, global_batch=batch)
    preset, order = MODELS[name]
    return Task(
        replace(Model.preset(preset), order=order),
        cluster,
        sequence=2048,
        global_batch=batch,
        software=replace(software_profile(software), bucket_parameters_per_rank=bucket),
    )


def cuts(layers, stages, bare_head=False):
    """Every way to cut layers into stages of one or more; of the head alone the last one."""
    for inner in combinations(range(1, layers + (bare_head and stages > 1)), stages - 1):
        yield np.diff((0, *inner, layers))


def stage_options(layers, gpus, choose, batch):
    """Every stage of so many layers: (tp, dp, zero, layers of the first run, its mode, the other
    mode) rows."""
    modes = sorted(choose["recompute"])
    pairs = list(combinations(modes, 2)) or [(modes[0], modes[0])]
    for g, tp, zero, (low, high) in product(gpus, choose["tp"], choose["zero"], pairs):
        if g % tp or batch % (g // tp):
            continue
        if not layers:
            yield from ((tp, g // tp, zero, 0, mode, mode) for mode in {low, high})
            continue
        for more in range(layers + 1) if low != high else (0,):
            first, second = high if more else low, low if more < layers else high
            yield tp, g // tp, zero, more, first, second


def tables(question, choose, unequal):
    """Every plan of the set, as tables with one cut and number of micro-batches each."""
    batch, gpus, layers = question.global_batch, question.gpus, question.model.layers
    for pp, sp in product(choose["pp"], choose["sequence_parallel"]):
        alike = gpus % pp == 0 and (pp == 1 or not unequal)
        sizes = (gpus // pp,) if alike else tuple(range(1, gpus - pp + 2))
        for cut in cuts(layers, pp, has_bare_head(question)):
            options = [np.array([*stage_options(int(n), sizes, choose, batch)]) for n in cut]
            if not all(o.size for o in options):
                continue
            index = np.indices([len(o) for o in options]).reshape(pp, -1)
            rows = np.stack([o[i] for o, i in zip(options, index, strict=True)], axis=1)
            filled = (rows[:, :, 0] * rows[:, :, 1]).sum(axis=1) == gpus
            for m in (m for m in range(1, batch + 1) if batch % m == 0):
                share = batch // m % rows[:, :, 1] == 0
                chosen = rows[filled & share.all(axis=1)]
                if len(chosen):
                    yield table(question, choose, cut, m, sp, chosen)


def table(question, choose, cut, m, sp, rows):
    """Plans with one cut [plan, stage, option] as a table."""
    pp, n = len(cut), len(rows)
    tp, dp, zero, more, high, low = (np.repeat(c, 2, axis=1) for c in np.moveaxis(rows, 2, 0))
    first = np.tile([True, False], pp)
    segments = Segments(
        stage=np.broadcast_to(np.repeat(np.arange(pp), 2), (n, 2 * pp)),
        layers=np.where(first, more, np.repeat(cut, 2) - more),
        tp=tp,
        dp=dp,
        zero=zero,
        recompute=np.where(first, high, low),
    )
    own = {
        "tp": tp[:, 0],
        "dp": dp[:, 0],
        "micro_batch": question.global_batch // (m * dp[:, 0]),
        "zero": zero[:, 0],
    }
    wide = sp and question.software.tp_overlap_share > 0
    wide = wide and bool(question.model.kinds)
    same = {"pp": pp, "schedule": choose["schedule"][0], "sequence_parallel": sp}
    same |= {"overlap_tp": wide, "overlap_grad_reduce": 1, "overlap_param_gather": 1}
    same |= {"overlap_p2p": 0, **DEFAULT_POLICY._asdict()}
    columns = {name: np.full(n, int(value)) for name, value in same.items()}
    plans = from_columns({**columns, **own}, (), segments)
    return plans.take(legal_rows(plans, question))


def every_plan(question, choose, unequal=False):
    """Steps and bytes of every plan of the set, costed one by one."""
    costs = [simulate(question, t) for t in tables(question, choose, unequal) if t.rows]
    return (
        np.concatenate([np.empty(0), *(c.step for c in costs)]),
        np.concatenate([np.empty(0), *(c.memory_total for c in costs)]),
    )


USUAL = {
    "pp": (1, 2),
    "tp": (1, 2, 4),
    "zero": (0, 1),
    "recompute": (0, 2),
    "sequence_parallel": (1,),
    "schedule": (0,),
    "micro_batch": tuple(range(1, 25)),
    "cp": (1,),
    "ep": (1,),
}
SWEEP = {
    "tied": ("tied", {}, {}, False),
    "tied slow": ("tied", {"slow": SLOW}, {"zero": (0, 1, 2)}, False),
    "sharded": ("gated", {"slow": SLOW}, {"zero": (1, 2, 3), "recompute": (0,)}, False),
    "growing buckets": ("gated", {"slow": SLOW, "bucket": 6e7}, {"zero": (0, 1, 2)}, False),
    "modes": ("gated", {}, {"recompute": (0, 1, 2), "zero": (1,), "tp": (1, 2)}, False),
    "four stages": ("gated", {"slow": SLOW}, {"pp": (4,), "tp": (1, 2), "zero": (1,)}, False),
    "gpipe": ("tied", {"slow": SLOW}, {"pp": (2,), "schedule": (2,)}, False),
    "mixed": ("mixed", {}, {}, False),
    "alternating": ("alternating", {}, {"pp": (2, 4), "zero": (1,)}, False),
    "both": ("gated", {}, {"sequence_parallel": (0, 1), "zero": (1,)}, False),
    "no sequence parallelism": ("gated", {}, {"sequence_parallel": (0,), "zero": (1,)}, False),
    "launch floor": ("gated", {"software": "nanotron"}, {"zero": (1,)}, False),
    "listed": ("listed", {"batch": 48}, {"pp": (2, 4), "tp": (1,)}, False),
    "listed slow": ("listed", {"slow": SLOW / 10}, {"pp": (2,), "tp": (1,)}, False),
    "listed unequal": ("listed", {}, {"pp": (2, 3), "tp": (1,), "zero": (1,)}, True),
    "unequal": ("tied", {"slow": SLOW}, {"pp": (2, 3), "tp": (1, 2), "zero": (1,)}, True),
    "unequal mixed": ("mixed", {}, {"pp": (2, 3), "zero": (1,), "recompute": (0,)}, True),
    "five stages of twelve GPUs": (
        "tied",
        {"gpus": 12, "batch": 18},
        {"pp": (5,), "tp": (1,), "zero": (1,)},
        False,
    ),
    "seven slow": ("seven", {"slow": SLOW}, {"pp": (4,), "zero": (0, 1), "recompute": (0,)}, False),
    "eight, two stages": ("eight", {"slow": SLOW}, {"zero": (0, 1, 3)}, False),
    "eight gpipe": ("eight", {}, {"pp": (4,), "zero": (0,), "tp": (2,), "schedule": (2,)}, False),
}


def solved(question, choose, limit, unequal=False):
    """The answer to a small question, and its best plan."""
    options = SearchOptions(limit=limit, top=1)
    return dynamic_programming.search(Space.of(question, choose), options, unequal=unequal)


SLOW_CASES = (
    *("both", "eight gpipe", "eight, two stages", "listed", "seven slow", "unequal", "alternating"),
    *("five stages of twelve GPUs", "no sequence parallelism", "tied", "unequal mixed"),
)
"""Each has a smaller case of its kind."""


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow if x in SLOW_CASES else ()) for x in SWEEP]
)
def test_the_best_plan_is_that_of_brute_force(name):
    model, changes, choose, unequal = SWEEP[name]
    question, choose = task(model, **changes), {**USUAL, **choose}
    steps, memory = every_plan(question, choose, unequal)
    for share in (0.0, 0.1, 1.0):
        limit = float(np.quantile(memory, share)) * (1 + 1e-9)
        found = solved(question, choose, limit, unequal)
        best = steps[memory <= limit].min()
        assert found.best.step_seconds == pytest.approx(best, rel=1e-9)
        assert found.complete
        assert found.bound == pytest.approx(best, rel=1e-8)
        again = evaluate(question, found.plans[0])
        assert again.step_seconds == pytest.approx(found.best.step_seconds, rel=1e-12)
        assert again.memory_bytes <= limit
    nothing = solved(question, choose, memory.min() * 0.99, unequal)
    assert nothing.best is None
    assert nothing.complete
    assert nothing.bound is None


@st.composite
def problems(draw):
    """A small question, values for the fields of a stage, and a share of plans that fit."""

    def some(values, most):
        return tuple(
            draw(st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True))
        )

    model = draw(st.sampled_from(SMALL))
    slow = draw(st.sampled_from([None, SLOW, SLOW / 10]))
    question = task(model, batch=draw(st.sampled_from([4, 8, 12])), slow=slow)
    choose = {
        **USUAL,
        "pp": some([1, 2, 4], 2),
        "tp": some([1, 2, 4], 2),
        "zero": some([0, 1, 2, 3], 2),
        "recompute": some([0, 1, 2], 2),
        "schedule": some([0, 2], 1),
        "sequence_parallel": some([0, 1], 2),
    }
    return question, choose, draw(st.floats(0, 1))


def best_of_all(question, choose, share):
    """The least step among the plans that fit with the least `share` of memory, and the limit."""
    steps, memory = every_plan(question, choose)
    if not steps.size:
        return np.inf, 1e15
    limit = float(np.quantile(memory, share)) * (1 + 1e-9)
    return steps[memory <= limit].min(), limit


@given(problem=problems())
@settings(deadline=None, max_examples=5, print_blob=True)
def test_any_small_problem_is_solved_exactly(problem):
    question, choose, share = problem
    if choose["schedule"] == (2,):
        choose["pp"] = tuple(p for p in choose["pp"] if p > 1) or (2,)
    best, limit = best_of_all(question, choose, share)
    found = solved(question, choose, limit)
    assert found.complete
    if np.isinf(best):
        assert found.best is None
        return
    assert found.best.step_seconds == pytest.approx(best, rel=1e-9)
    again = evaluate(question, found.plans[0])
    assert again.step_seconds == pytest.approx(best, rel=1e-9)
    assert again.memory_bytes <= limit


LARGE = Task(
    Model.preset("llama-3.1-70b"),
    Cluster.profile("h100-sxm", gpus=64),
    sequence=8192,
    global_batch=256,
)


def search(choose=(), **options):
    """Of whole stages: test_chunks has the others."""
    own = {"virtual_stages": [1], **dict(choose)}
    return rank_plans(LARGE, Ranking(backend="dynamic-programming", choose=own, **options))


def test_no_uniform_plan_of_the_set_is_better():
    result = search(choose={"pp": [4, 8]})
    uniform = rank_plans(LARGE, Ranking(choose={"pp": [4, 8], "virtual_stages": [1]}))
    steps, step = result.compared, result.best.step_seconds
    assert result.complete
    assert result.gap == pytest.approx(0, abs=1e-8)
    assert steps.not_interleaved == pytest.approx(uniform.best.step_seconds)
    assert step <= steps.not_interleaved <= steps.same_pp
    assert steps.overall == steps.not_interleaved
    assert all(plan.segments for plan in not_empty(result.plans))
    assert (np.diff(result.costs.step) >= 0).all()
    assert (result.costs.memory_total <= result.limit).all()
    assert len({str(plan) for plan in result.plans}) == len(result.plans)


def test_slow_stages_come_first_among_plans_with_equal_closed_forms():
    result = search(choose={"pp": [8], "tp": [4], "cp": [1]}, headroom=0.04)
    best = int(result.event_seconds.argmin())
    assert result.costs.step[best] < result.costs.step[0] * 1.002
    assert result.event_seconds[best] < 0.995 * result.event_seconds[0]


def test_a_pp_that_does_not_divide_the_gpus_gets_stages_of_unequal_size():
    small = replace(LARGE, cluster=Cluster.profile("h100-sxm", gpus=16), model=task("gated").model)
    result = rank_plans(small, Ranking(backend="dynamic-programming", choose={"pp": [3]}))
    runs = result.plans[0].segments
    gpus = (runs.tp * runs.dp * result.plans[0].cp)[0]
    sizes = [gpus[runs.stage[0] == stage][0] for stage in range(3)]
    assert sum(sizes) == 16
    assert len(set(sizes)) > 1
    assert result.best.step_seconds == evaluate(small, result.plans[0]).step_seconds
    assert result.compared.not_interleaved == np.inf


def test_a_bound_holds_however_early_a_search_ends():
    best = search(choose={"pp": [4]}).best.step_seconds
    result = search(choose={"pp": [4]}, time_limit=1e-6)
    assert not result.complete
    assert 0 <= result.bound <= best


def test_an_interrupt_leaves_a_bound_and_the_best_so_far():
    found = []

    def stop(stages):
        found.append(stages)
        if len(found) == 3:
            raise KeyboardInterrupt

    result = search({"pp": [4, 8]}, progress=stop)
    assert result.interrupted
    assert not result.complete
    assert result.plans
    assert result.bound <= search({"pp": [4, 8]}).best.step_seconds


def test_what_none_can_hold_is_answered_with_no_plan():
    result = search(headroom=0.99)
    assert result.complete
    assert not result.plans
    assert result.best is None
    assert result.smallest.memory_bytes > result.limit


def test_the_sum_over_stages_is_the_step_of_the_simulator():
    options = SearchOptions(limit=LARGE.cluster.accelerator.memory)
    space = Space.of(LARGE, {"pp": [4, 8], "cp": [1]})
    stages = stage_space(space, "test", "step-time", dynamic_programming.STAGE_SCHEDULES)
    uniform = UniformPlans.of(space, stages, options)
    answer = dynamic_programming.solve(stages, uniform, options)
    assert answer.search.solutions
    for (step, *_), plan in zip(answer.search.solutions, answer.search.plans(), strict=True):
        assert evaluate(LARGE, plan.take(0)).step_seconds == pytest.approx(step, rel=1e-12)
        again = Plan.parse(str(plan))
        assert evaluate(LARGE, again).step_seconds == pytest.approx(step, rel=1e-12)


def test_a_bound_on_cost_is_one_on_the_step_times_the_gpus():
    asked = {"choose": {"pp": [4], "cp": [1]}}
    seconds, cost = search(**asked), search(**asked, objective="cost")
    assert cost.bound == pytest.approx(seconds.bound * LARGE.gpus)
    assert cost.gap == seconds.gap == 0


def test_a_plan_that_fills_the_limit_is_on_the_frontier():
    question = task("tied")
    space = Space.of(question, {"pp": [1], "micro_batch": [1], "cp": [1]})
    found = UniformPlans.of_default_space(space, SearchOptions(limit=8e10, frontier=True))
    uniform = found.whole_stages
    least = float(uniform.frontier.memory_total.min())
    for limit, rows in ((least, 1), (least * (1 - 1e-9), 0)):
        front = dynamic_programming._frontier(replace(uniform, limit=limit), None)
        assert (0 if front is None else len(front)) == rows
