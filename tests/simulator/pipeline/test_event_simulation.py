"""Event simulation: every operation is timed exactly, and the closed forms equal that."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.pipeline import dependency_graph
from plan3d.simulator.pipeline.dependency_graph import graph_of_orders
from plan3d.simulator.pipeline.event_simulation import StageTimes, simulate
from plan3d.simulator.pipeline.operation_orders import Pass
from plan3d.simulator.pipeline.schedule import SEVERAL_CHUNKS, Passes, Sizes
from plan3d.simulator.pipeline.schedules import (
    SCHEDULES,
    idle_seconds,
    in_flight,
    peak_activations,
    schedule_code,
    sends,
)
from plan3d.simulator.pipeline.stage_placement import chunk_ranks
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.evaluate import by_stage, evaluate
from plan3d.simulator.step.plan_timeline import rescore, timeline_of
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

SHAPES = [
    *((s, p, 1, m) for s in ("1f1b", "gpipe", "naive") for p, m in ((1, 3), (2, 1), (4, 9))),
    *(("interleaved", p, v, m) for p, v, m in ((2, 3, 4), (4, 2, 8), (4, 4, 4))),
    *(("breadth-first", p, v, m) for p, v, m in ((2, 3, 5), (4, 2, 8))),
    *((s, p, 1, m) for s in ("zb-h1", "zb-h2", "zb-h2-sync") for p, m in ((2, 7), (4, 3), (4, 12))),
    *(("zb-v", p, 2, m) for p, m in ((2, 4), (4, 8), (4, 13), (3, 2))),
    *(("dualpipe", p, 1, m) for p, m in ((2, 4), (4, 8), (6, 20))),
    *(("dualpipe-v", p, 2, m) for p, m in ((1, 2), (3, 6), (4, 11))),
]


def graph(name, *sizes):
    return dependency_graph.graph(SCHEDULES[name], *sizes)


def uniform(stages, forward=1.0, gradient=1.0, weight=1.0, **more):
    each = (np.full(stages, seconds) for seconds in (forward, gradient, weight))
    return StageTimes(**dict(zip(FIELDS, each, strict=True)), **more)


FIELDS = ("forward", "input_gradient", "weight_gradient")


def uneven(seed, stages, layouts=(), **more):
    draw = np.random.default_rng(seed).uniform(0.1, 3, (3, *layouts, stages))
    return StageTimes(**dict(zip(FIELDS, draw, strict=True)), **more)


def brute_force(g, times):
    """Start and end of every operation, one at a time in any order that can run."""
    seconds = {
        Pass.FORWARD: times.forward,
        Pass.BACKWARD: times.input_gradient + times.weight_gradient,
        Pass.INPUT: times.input_gradient,
        Pass.WEIGHT: times.weight_gradient,
    }
    hops = np.append(np.broadcast_to(times.hop, g.stages - 1), 0.0)
    end, start = [None] * g.operations, [0.0] * g.operations
    second = {int(b): int(b) - 1 for b in g.partner if b >= 0}
    free, at = [0.0] * g.ranks, [int(np.searchsorted(g.rank, r)) for r in range(g.ranks)]
    stop = [*at[1:], g.operations]
    left = g.operations
    while left:
        for r in range(g.ranks):
            while at[r] < stop[r]:
                group = [at[r]] + [at[r] + 1] * (second.get(at[r] + 1) == at[r])
                needs = [(g.source[i], g.received_boundary[i]) for i in group if g.source[i] >= 0]
                if any(end[i] is None for i, _ in needs):
                    break
                # Whoever receives and whoever sent stand still for their share of the hop.
                held = sum(times.blocking_share * hops[b] for b in g.received_boundary[group])
                ready = [end[i] + hops[b] for i, b in needs]
                begin = max([free[r] + held, *ready])
                last = begin + sum(seconds[Pass(g.kind[i])][g.stage[i]] for i in group)
                for i in group:
                    start[i], end[i] = begin, last
                free[r] = last + sum(times.blocking_share * hops[b] for b in g.sent_boundary[group])
                at[r] += len(group)
                left -= len(group)
    return np.array(start), np.array(end)


# Every operation


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("held", [0.0, 1.0])
def test_every_start_and_end_is_that_of_a_brute_force(shape, held):
    schedule, p, v, m = shape
    g = graph(schedule, p, v, m)
    hop = np.random.default_rng(1).uniform(0, 1, p * v - 1)
    times = uneven(0, p * v, hop=hop, blocking_share=held)
    t = simulate(g, times)
    start, end = brute_force(g, times)
    np.testing.assert_allclose(t.start, start, atol=1e-12)
    np.testing.assert_allclose(t.end, end, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_pass_runs_once_on_its_rank_and_after_what_it_needs(shape):
    schedule, p, v, m = shape
    g = graph(schedule, p, v, m)
    t = simulate(g, uneven(2, p * v, hop=0.3))
    passes = {}
    ranks = chunk_ranks(p, p * v, SCHEDULES[schedule].placement)
    for i in range(g.operations):
        passes.setdefault((int(g.stage[i]), int(g.micro_batch[i])), []).append(i)
        copies = {int(ranks[g.stage[i]])}
        copies |= {p - 1 - r for r in copies if SCHEDULES[schedule].copies == 2}
        assert int(g.rank[i]) in copies
    assert len(passes) == p * v * m
    for (stage, _), mine in passes.items():
        kinds = sorted(g.kind[mine].tolist())
        assert kinds in ([Pass.FORWARD, Pass.BACKWARD], [Pass.FORWARD, Pass.INPUT, Pass.WEIGHT])
        by_kind = {int(g.kind[i]): i for i in mine}
        back = by_kind.get(Pass.BACKWARD, by_kind.get(Pass.INPUT))
        assert t.start[back] >= t.end[by_kind[Pass.FORWARD]] - 1e-12
        if Pass.WEIGHT in by_kind:
            assert t.start[by_kind[Pass.WEIGHT]] >= t.end[back] - 1e-12
        assert (g.source[by_kind[Pass.FORWARD]] < 0) == (stage == 0)
    for r in range(p):
        own = np.flatnonzero(g.rank == r)
        single = own[~np.isin(own, g.partner)]
        assert (t.start[single[1:]] >= t.end[single[:-1]] - 1e-12).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_batch_of_layouts_is_each_of_them(shape, monkeypatch):
    schedule, p, v, m = shape
    g = graph(schedule, p, v, m)
    many = uneven(3, p * v, (5,), hop=0.2, blocking_share=0.5)
    together = simulate(g, many)
    monkeypatch.setattr("plan3d.simulator.pipeline.event_simulation.CELLS", 2 * g.operations)
    pieces = simulate(g, many)
    for i in range(5):
        own = StageTimes(**{n: getattr(many, n)[i] for n in FIELDS}, hop=0.2, blocking_share=0.5)
        alone = simulate(g, own)
        for t in (together, pieces):
            np.testing.assert_array_equal(t.layout(i).end, alone.end)
            np.testing.assert_array_equal(t.layout(i).start, alone.start)
        assert together.step_seconds[i] == alone.step_seconds
        np.testing.assert_array_equal(together.idle[:, i], alone.idle)


@pytest.mark.parametrize("shape", SHAPES)
def test_critical_path_is_a_chain_as_long_as_the_step(shape):
    schedule, p, v, m = shape
    t = simulate(graph(schedule, p, v, m), uneven(4, p * v))
    path = t.critical_path()
    seconds = (t.end - t.start)[path]
    assert seconds.sum() == pytest.approx(float(t.makespan))
    np.testing.assert_allclose(t.start[path][1:], t.end[path][:-1], atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_busy_and_idle_fill_the_step_and_activations_all_go(shape):
    schedule, p, v, m = shape
    times = uneven(5, p * v, hop=0.1)
    t = simulate(graph(schedule, p, v, m), times)
    work = sum(getattr(times, name) for name in FIELDS)
    assert t.busy.sum() == pytest.approx(m * work.sum())
    np.testing.assert_allclose(t.busy + t.idle, t.step_seconds)
    assert (t.idle >= -1e-9).all()
    assert t.step_seconds <= t.makespan
    for moments, held in t.live_activations(np.full(p * v, 2.0)):
        assert (np.diff(moments) >= 0).all()
        assert held[-1] == 0
        assert held.min() >= 0


# Closed forms


def closed_idle(schedule, p, v, m, forward, gradient, weight):
    own = [np.array([seconds]) for seconds in (forward, gradient, weight)]
    others = Passes(*((p - 1) * seconds for seconds in own))
    usual = others.total / v
    sizes = Sizes(*(np.array([float(x)]) for x in (p, v, p, m)))
    return idle_seconds(np.array([schedule_code(schedule)]), sizes, Passes(*own), others, usual)[0]


def simulated_idle(schedule, p, v, m, *seconds, deferred=0):
    each = (one / v for one in seconds)
    t = simulate(graph(schedule, p, v, m, 0, deferred), uniform(p * v, *each))
    return float(t.step_seconds) - m * sum(seconds)


TIMES = [(1, 1, 1), (2, 3, 1.5), (1, 2, 1.9), (3, 1, 2), (18.5, 18.1, 9.3), (10.4, 10.2, 7.7)]
EXACT = [
    *((s, p, 1, m) for s in ("1f1b", "gpipe", "naive") for p, m in ((2, 2), (4, 9), (8, 5))),
    *((s, p, v, m) for s in ("interleaved", "breadth-first") for p, v, m in ((4, 3, 8), (8, 2, 8))),
    *((s, p, 1, m) for s in ("zb-h1", "zb-h2-sync") for p, m in ((2, 4), (4, 12), (8, 40))),
    *(("zb-h1", p, 1, m) for p, m in ((4, 2), (4, 3), (8, 5))),
    *(("zb-v", p, 2, m) for p, m in ((2, 4), (3, 7), (8, 16), (8, 40))),
    *(("dualpipe", p, 1, m) for p, m in ((2, 4), (4, 8), (8, 30))),
    *(("dualpipe-v", p, 2, m) for p, m in ((2, 4), (3, 6), (4, 13))),
]


@pytest.mark.parametrize(("schedule", "p", "v", "m"), EXACT)
@pytest.mark.parametrize("seconds", TIMES)
def test_idle_time_equals_the_closed_form(schedule, p, v, m, seconds):
    found = simulated_idle(schedule, p, v, m, *seconds)
    assert found == pytest.approx(closed_idle(schedule, p, v, m, *seconds), rel=1e-9, abs=1e-9)


@given(
    shape=st.sampled_from(["zb-h1", "zb-v", "dualpipe", "dualpipe-v"]),
    half=st.integers(1, 4),
    more=st.integers(0, 9),
    seconds=st.tuples(*3 * [st.floats(0.1, 10)]),
)
def test_idle_time_equals_the_closed_form_whatever_the_passes_take(shape, half, more, seconds):
    p, v = 2 * half, 1 + (shape in ("zb-v", "dualpipe-v"))
    m = 2 * p + (more // 2 * 2 if shape == "dualpipe" else more)
    found = simulated_idle(shape, p, v, m, *seconds)
    assert found == pytest.approx(closed_idle(shape, p, v, m, *seconds), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 3), (4, 7), (4, 40), (8, 8), (8, 60)])
@pytest.mark.parametrize("seconds", TIMES)
def test_zb_h2_idles_as_its_closed_form(p, m, seconds):
    """With as many weight gradients deferred as it takes; whole ones, hence up to one more."""
    forward, gradient, weight = seconds
    longest = np.array(forward + gradient)
    sizes = Sizes(p, 1, p, m)
    held = SCHEDULES["zb-h2"].deferred_weight_gradients(sizes, longest, np.array(weight))
    found = simulated_idle("zb-h2", p, 1, m, *seconds, deferred=float(held))
    closed = closed_idle("zb-h2", p, 1, m, *seconds)
    assert closed - 1e-9 <= found <= closed + weight
    if float(held).is_integer():
        assert found == pytest.approx(closed, abs=1e-9)


def test_zero_bubble_schedules_have_none_when_passes_are_equal():
    for p in (2, 4, 8):
        assert simulated_idle("zb-h2", p, 1, 3 * p, 1, 1, 1) == pytest.approx(0)
        assert simulated_idle("zb-v", p, 2, 3 * p, 2, 2, 2) == pytest.approx(0)
        assert simulated_idle("zb-h2-sync", p, 1, 3 * p, 1, 1, 1) == pytest.approx(p - 1)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("pair", [1.0, 0.8])
def test_dualpipe_idles_as_published(p, pair):
    """(p/2 - 1)(F&B + B - 3W), B both gradients, F&B a pair; equal passes (DualPipe's README)."""
    for schedule, stages, m in (("dualpipe", p, 3 * p), ("dualpipe-v", 2 * p, 3 * p)):
        v = stages // p
        t = simulate(graph(schedule, p, v, m), uniform(stages, pair_share=pair))
        idle = float(t.step_seconds - t.busy.max())
        published = (stages / 2 - 1) * (3 * pair + 2 - 3)
        assert idle == pytest.approx(published, abs=1e-9) or pair < 1
        assert idle <= (stages / 2 - 1) * 2 + 1e-9


@pytest.mark.parametrize("shape", SHAPES)
def test_peak_in_flight_equals_the_closed_form(shape):
    schedule, p, v, m = shape
    if schedule == "zb-v" and m < 2 * p:
        pytest.skip("refused")
    rank = np.arange(p, dtype=float)
    sizes = Sizes(*(np.full(p, float(x)) for x in (p, v, p, m)))
    closed = in_flight(np.full(p, schedule_code(schedule)), sizes, rank)
    t = simulate(graph(schedule, p, v, m), uniform(p * v))
    np.testing.assert_allclose(t.peak(np.full(p * v, 1 / v)), closed)


@pytest.mark.parametrize(
    "schedule",
    [n for n, s in SCHEDULES.items() if s.chunks != SEVERAL_CHUNKS and n != "zb-h2-sync"],
)
@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 8), (8, 32)])
def test_exposed_sends_equal_the_closed_form(schedule, p, m):
    """Ledger T8: between one micro-batch's boundaries, there and back, and all of them."""
    hop, v = 1e-3, SCHEDULES[schedule].chunks.least
    g = graph(schedule, p, v, m)
    without, with_ = (simulate(g, uniform(p * v, hop=h)).step_seconds for h in (0.0, hop))
    exposed = float(with_ - without) / hop
    sizes = Sizes(*(np.array([float(x)]) for x in (p, v, p, m)))
    overlapped = np.array([float(schedule != "1f1b")])
    closed = sends(np.array([schedule_code(schedule)]), sizes, overlapped)[0]
    assert exposed == pytest.approx(closed)
    assert 2 * (p - 1) - 1e-6 <= exposed <= 2 * v * (p - 1) * m + 1e-6


@given(
    shape=st.sampled_from([shape for shape in SHAPES if shape[1] > 1]),
    kept=st.floats(0.5, 2),
    pending=st.floats(0.1, 20),
    held_back=st.integers(2, 6),
)
def test_bytes_held_equal_the_live_memory(shape, kept, pending, held_back):
    """The largest of the live memory over time, on every rank; whole and pending micro-batches."""
    schedule, p, v, m = shape
    if schedule == "zb-v":
        m = max(m, 2 * p)
    elif SCHEDULES[schedule].held_back:
        m = max(m, held_back * p)
    rank = np.arange(p, dtype=float)
    sizes = Sizes(*(np.full(p, float(x)) for x in (p, v, p, m)))
    late, codes = np.full(p, float(held_back)), np.full(p, schedule_code(schedule))
    closed = peak_activations(codes, sizes, rank, late, np.full(p, kept), np.full(p, pending))
    t = simulate(graph(schedule, p, v, m, 0, held_back), uniform(p * v))
    found = t.peak(np.full(p * v, kept / v), np.full(p * v, pending / v))
    np.testing.assert_allclose(found, closed)


@given(
    p=st.integers(2, 6),
    v=st.integers(2, 4),
    longer=st.integers(0, 6),
    groups=st.integers(1, 3),
    rest=st.integers(0, 5),
)
def test_groups_of_micro_batches(p, v, longer, groups, rest):
    """Idle time, peak and sends of groups of g micro-batches, the last of which may be shorter."""
    g = p + longer
    m = groups * g + (p + rest if p + rest < g else 0)
    t, late = (
        simulate(graph("interleaved", p, v, m, g), uniform(p * v, 1, 1.5, 0.5, hop=hop))
        for hop in (0, 1e-5)
    )
    np.testing.assert_allclose(t.idle, (p - 1) * 3)
    sizes = Sizes(*(np.full(p, float(x)) for x in (p, v, g, m)))
    codes = np.full(p, schedule_code("interleaved"))
    peak = in_flight(codes, sizes, np.arange(p, dtype=float))
    np.testing.assert_allclose(t.peak(np.full(p * v, 1 / v)), peak)
    exposed = float(late.step_seconds - t.step_seconds) / 1e-5
    assert exposed == pytest.approx(sends(codes, sizes, np.ones(p))[0], abs=1e-3)


# The ledger


def test_t5_naive_model_parallelism_uses_one_rank_at_a_time():
    t = simulate(graph("naive", 4, 1, 6), uniform(4))
    np.testing.assert_allclose(t.busy / t.step_seconds, 1 / 4)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8), (8, 64), (64, 64)])
def test_t6_idle_over_useful_is_stages_less_one_over_micro_batches(schedule, p, m):
    t = simulate(graph(schedule, p, 1, m), uniform(p, 1.1, 0.9, 1.3))
    np.testing.assert_allclose(t.idle / t.busy, (p - 1) / m, rtol=1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("slow", range(4))
def test_t7_uneven_stages_idle_more(schedule, slow):
    p, m = 4, 16
    even, heavy = (uniform(p), uniform(p))
    for name in FIELDS:
        getattr(heavy, name)[slow] = 1.5
        getattr(even, name)[:] = (p + 0.5) / p
    shares = [
        float(t.idle.sum() / t.busy.sum())
        for t in (simulate(graph(schedule, p, 1, m), times) for times in (even, heavy))
    ]
    assert shares[1] > shares[0] + 1e-9


@given(seed=st.integers(0, 10**6), shape=st.sampled_from(SHAPES), held=st.floats(0, 1))
def test_bounds_and_monotony(seed, shape, held):
    schedule, p, v, m = shape
    g = graph(schedule, p, v, m)
    plain = simulate(g, uneven(seed, p * v))
    hops = simulate(g, uneven(seed, p * v, hop=0.3))
    blocking = simulate(g, uneven(seed, p * v, hop=0.3, blocking_share=held))
    assert plain.busy.max() <= plain.step_seconds + 1e-9
    assert (hops.end >= plain.end - 1e-9).all()
    assert (blocking.end >= hops.end - 1e-9).all()


# What cannot be


def test_deadlocks_are_named():
    with pytest.raises(InputError, match=r"deadlock: the interleaved order .* rank \d waits at "):
        graph("interleaved", 8, 2, 20)
    assert simulate(graph("interleaved", 8, 2, 20, 10), uniform(16)).step_seconds > 0
    swapped = SCHEDULES["1f1b"].orders(2, 1, 2)
    swapped[0] = swapped[0][::-1].copy()
    with pytest.raises(InputError, match="deadlock"):
        graph_of_orders(swapped, 2)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (("1f1b", 4, 1, 0), "0 micro-batches: a pipeline needs at least 1"),
        (("1f1b", 0, 1, 4), "0 pp"),
        (("zb-v", 4, 1, 8), "zb-v schedule needs virtual_stages=2, not 1"),
        (("zb-h1", 4, 2, 8), "zb-h1 schedule needs virtual_stages=1, not 2"),
        (("breadth-first", 4, 1, 8), "needs virtual_stages >= 2, not 1"),
        (("dualpipe", 3, 1, 8), "even pp .*, not pp = 3 and 8; nearest: pp = 4 and 8"),
        (("dualpipe", 4, 1, 9), "not pp = 4 and 9; nearest: pp = 4 and 10"),
        (("dualpipe", 4, 1, 6), "6 micro-batches are fewer than 2 pp = 8, .*; nearest: 8"),
        (("dualpipe-v", 4, 2, 6), "the dualpipe-v schedule needs; nearest: 8"),
    ],
)
def test_impossible_sizes_name_the_nearest(shape, message):
    with pytest.raises(InputError, match=message):
        graph(*shape)


def test_impossible_times_are_refused():
    g = graph("1f1b", 4, 1, 8)
    with pytest.raises(InputError, match=r"forward is -1.0; seconds must be at least 0"):
        simulate(g, uniform(4, forward=-1.0))
    with pytest.raises(InputError, match="hop is -2"):
        simulate(g, uniform(4, hop=-2.0))
    with pytest.raises(InputError, match="not finite"):
        simulate(g, uniform(4, weight=np.nan))
    with pytest.raises(InputError, match="gives 3 stages; the schedule has 4"):
        simulate(g, uniform(3))


# Plans


@cache
def task(batch=64, gpus=64):
    cluster = Cluster.profile("a100-80gb-sxm", gpus=gpus)
    return Task(Model.preset("gpt3-6.7b"), cluster, sequence=2048, global_batch=batch)


PLANS = {
    "pp=4 tp=2 schedule=1f1b": 0.015,
    "pp=8 virtual_stages=2 schedule=interleaved": 0.005,
    "pp=8 schedule=gpipe": 0.005,
    "pp=4 schedule=naive": 0.005,
    "pp=4 virtual_stages=4 schedule=breadth-first": 0.01,
    "pp=8 schedule=zb-h1": 0.02,
    "pp=8 schedule=zb-h2": 0.02,
    "pp=8 schedule=zb-h2-sync": 0.02,
    "pp=4 tp=2 recompute=full micro_batch=2": 0.01,
    "pp=8 layers_per_stage=3,4,4,5,5,4,4,3": 0.03,
    "tp=8": 1e-9,
    "pp=8 virtual_stages=2 micro_batch_group=16": 0.01,
    "pp=8 virtual_stages=2 schedule=zb-v": 0.02,
    "pp=8 schedule=dualpipe": 0.03,
    "pp=8 virtual_stages=2 schedule=dualpipe-v": 0.05,
}


@pytest.mark.parametrize("text", PLANS)
def test_the_simulated_step_of_a_plan_is_near_the_closed_form(text):
    x = timeline_of(task(512), Plan.parse(text))
    assert x.step_seconds == pytest.approx(x.closed_form, rel=PLANS[text])
    costs = evaluate(task(512), Plan.parse(text))
    assert x.closed_form == costs.step_seconds
    assert rescore(costs)[0] == pytest.approx(x.step_seconds, rel=1e-12)
    share = x.times.forward + x.times.input_gradient + x.times.weight_gradient
    assert share.sum() > 0
    assert (x.times.weight_gradient <= 0.5 * share).all()


@pytest.mark.parametrize(
    "text", ["tp=8", "zero=3 recompute=full", "tp=4 zero=2 offload_optimizer=50", "cp=2 tp=4"]
)
def test_one_rank_waits_for_nobody(text):
    x = timeline_of(task(512), Plan.parse(text))
    assert x.step_seconds == pytest.approx(x.closed_form, rel=1e-12)
    assert rescore(x.costs)[0] == x.closed_form


def test_rescored_rows_are_the_plans_in_turn():
    texts = list(PLANS)[:4]
    rows = concat([resolve(Plan.parse(t), 64).table() for t in texts])
    found = rescore(evaluate(task(), rows))
    each = [timeline_of(task(), Plan.parse(t)).step_seconds for t in texts]
    np.testing.assert_allclose(found, each, rtol=1e-12)


def test_more_passes_than_are_simulated_keep_the_closed_form():
    costs = evaluate(task(2**20), Plan(pp=8, dp=1, tp=8, micro_batch=1))
    assert rescore(costs)[0] == costs.step_seconds
    with pytest.raises(InputError, match="at most 125,000 of 8 stages"):
        timeline_of(costs.task, costs.plans.take(0))


def test_schedules_in_one_table_do_not_mix():
    texts = [text for text in PLANS if "layers_per_stage" not in text]
    rows = concat([resolve(Plan.parse(t), 64).table() for t in texts])
    table = evaluate(task(512), rows)
    for row, text in not_empty(enumerate(texts)):
        alone = evaluate(task(512), Plan.parse(text))
        assert alone.step_seconds == table.step[row]
        assert alone.memory_bytes == table.memory_total[row]
        assert sum(alone.seconds.values()) == pytest.approx(alone.step_seconds)


def test_two_copies_double_parameters_and_their_sync_includes_the_other():
    llama = replace(task(512), model=Model.preset("llama-7b"))
    one, two = (
        evaluate(llama, Plan.parse(f"pp=8 schedule={name}")) for name in ("1f1b", "dualpipe")
    )
    middle, both = by_stage(one), by_stage(two)
    np.testing.assert_allclose(both["weights"][1:-1], 2 * middle["weights"][1:-1])
    # ZeRO-1 shards the optimizer over both copies.
    np.testing.assert_allclose(both["optimizer"][1:-1], middle["optimizer"][1:-1])
    assert two.seconds["data_comm"] > one.seconds["data_comm"]
    for schedule, syncs in (("1f1b", False), ("dualpipe", True)):
        alone = Plan.parse(f"tp=8 pp=8 dp=1 schedule={schedule}")
        assert (evaluate(llama, alone).seconds["data_comm"] > 0) == syncs


def test_a_v_holds_both_ends_on_the_first_rank():
    found = by_stage(evaluate(task(512), Plan.parse("pp=4 virtual_stages=2 schedule=zb-v")))
    assert found["logits"][0] > 0 == found["logits"][1:].sum()
    assert found["weights"].argmax() == 0
    assert len(set(found["weights"][1:])) == 1


def test_zero_bubble_costs_memory_and_saves_time():
    """With 2 pp micro-batches: ZB-H2 runs 2 pp - 1 before its first backward pass."""
    costs = {
        name: evaluate(task(128), Plan.parse(f"pp=8 schedule={name}"))
        for name in ("1f1b", "zb-h1", "zb-h2")
    }
    steps = [c.step_seconds for c in costs.values()]
    assert steps == sorted(steps, reverse=True)
    kept = [c.memory["activations"] for c in costs.values()]
    assert kept == sorted(kept)


def test_a_trace_has_the_structure_that_perfetto_reads():
    from plan3d.simulator.reporting.trace import THREADS, trace

    x = timeline_of(task(), Plan.parse("pp=4 tp=2 schedule=zb-h1"))
    events = json.loads(json.dumps(trace(x), allow_nan=False))["traceEvents"]
    by_phase = {}
    for event in events:
        by_phase.setdefault(event["ph"], []).append(event)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] == "M" or event["ts"] >= 0
    assert set(by_phase) == {"M", "X", "C", "s", "f"}
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in by_phase["M"] if e["name"] == "thread_name"
    }
    assert names == {(r, i): name for r in range(4) for i, name in THREADS.items()}
    passes = [e for e in by_phase["X"] if "micro_batch" in e["args"]]
    assert len(passes) == x.timeline.graph.operations
    assert sum(e["dur"] for e in passes) == pytest.approx(1e6 * x.timeline.busy.sum())
    starts = {e["id"]: e for e in by_phase["s"]}
    assert len(starts) == len(by_phase["s"]) == 2 * 3 * x.micro_batches
    slices = {(e["pid"], e["tid"], e["ts"]) for e in by_phase["X"]}
    for end in by_phase["f"]:
        begin = starts[end["id"]]
        assert begin["ts"] <= end["ts"]
        assert end["bp"] == "e"
        assert abs(begin["pid"] - end["pid"]) == 1
        for arrow in (begin, end):
            assert (arrow["pid"], arrow["tid"], arrow["ts"]) in slices
    assert all(e["args"]["bytes"] >= 0 for e in not_empty(by_phase["C"]))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("pp=4 virtual_stages=2", "svg"),
        ("pp=8 schedule=zb-h1", "png"),
        ("pp=32 schedule=dualpipe", "png"),
        ("tp=8", "png"),
    ],
)
def test_gantt_is_drawn(text, form):
    from plan3d.simulator.reporting.gantt import gantt_picture

    drawn = gantt_picture(timeline_of(task(256), Plan.parse(text)), form)
    assert drawn.startswith({"png": b"\x89PNG", "svg": b"<?xml"}[form])
