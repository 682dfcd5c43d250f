"""Intervals leave the other stages what they can do, and classes hold what is alike."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plan3d.search.space.space import Space
from plan3d.search.stages.candidates import _recompute_mixtures
from plan3d.search.stages.intervals import Intervals, _relaxed_layers, most_layers
from plan3d.search.stages.pipeline import LeastSeconds, pipelines
from plan3d.search.stages.stage_plans import CHUNK_DIVISIONS, rank_plans_within
from plan3d.search.stages.stage_space import most_overlap, stage_space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


def pipeline_of(order, pp):
    model = replace(Model.preset("deepseek-v3"), order=order)
    task = Task(model, Cluster.profile("h100-sxm", gpus=8), sequence=2048, global_batch=8)
    space = Space.of(task, {"pp": [pp], "cp": [1], "ep": [1], "micro_batch": [1]})
    axes = stage_space(space, "test", "step-time", ("1f1b",)).axes
    found = pipelines(task, {**axes, **most_overlap(task, axes)})
    return max(found, key=lambda pipeline: pipeline.tp.size)


orders = st.lists(st.integers(0, 1), min_size=4, max_size=9).map(tuple)


@given(order=orders, pp=st.sampled_from([1, 2, 4]))
@example(order=(0, 0, 0, 1, 0, 1, 1, 1, 0, 0), pp=4)
def test_a_class_is_what_a_stage_holds_and_what_is_before_and_behind_it(order, pp):
    found = Intervals.of(pipeline_of(order, pp), np.inf, np.inf)
    alike = [
        (order[max(start - 1, 0) : end], start == 0, end == len(order))
        for start, end in zip(found.start.tolist(), found.end.tolist(), strict=True)
    ]
    kinds = found.kind.tolist()
    assert len(set(alike)) == len(set(kinds)) == len({*zip(alike, kinds, strict=True)})
    assert [alike[i] for i in found.examples] == [alike[kinds.index(k)] for k in sorted({*kinds})]


@given(order=orders, pp=st.sampled_from([1, 2, 4]), room=st.floats(0.2, 2), share=st.floats(0.2, 2))
def test_no_interval_of_a_plan_within_time_and_memory_is_missing(order, pp, room, share):
    pipeline = pipeline_of(order, pp)
    least = pipeline.layers.least_seconds, pipeline.least_state_bytes
    seconds, held = (of_kind.min(axis=0)[list(order)] for of_kind in least)
    longest, limit = share * seconds.sum(), room * held.sum()
    found = Intervals.of(pipeline, longest, limit)
    rows = zip(found.start, found.end, found.first_stage, found.last_stage, strict=True)
    kept = {(i, a, b) for a, b, first, last in rows for i in range(first, last + 1)}
    wanted = set()
    for inner in combinations(range(1, len(order)), pp - 1):
        stages = [*pairwise((0, *inner, len(order)))]
        if all(seconds[a:b].sum() <= longest and held[a:b].sum() <= limit for a, b in stages):
            wanted |= {(i, a, b) for i, (a, b) in enumerate(stages)}
    assert wanted <= kept
    assert {i for i, _, _ in kept} <= {*range(pp)}


@given(most=st.lists(st.integers(1, 4), min_size=2, max_size=4), layers=st.integers(4, 8))
def test_intervals_within_what_stages_hold_are_those_of_the_cuts_that_they_can_have(most, layers):
    most, p = np.array(most, float), len(most)
    found = Intervals.of(pipeline_of((0,) * layers, p), np.inf, np.inf).restrict(most, layers)
    rows = zip(found.start, found.end, found.first_stage, found.last_stage, strict=True)
    kept = {(i, a, b) for a, b, first, last in rows for i in range(first, last + 1)}
    cuts = ([*pairwise((0, *c, layers))] for c in combinations(range(1, layers), p - 1))
    able = [cut for cut in cuts if all(b - a <= n for (a, b), n in zip(cut, most, strict=True))]
    needed = {(i, a, b) for cut in able for i, (a, b) in enumerate(cut)}
    assert needed <= kept
    assert bool(kept) == bool(needed)
    assert set(found.kind.tolist()) == set(range(len(found.examples)))


@pytest.mark.parametrize(("layers", "most"), [(4, 2), (5, 3), (6, 3), (7, 2), (8, 3), (8, 2)])
@pytest.mark.parametrize("stages", [slice(None), slice(1, 3), slice(3, 4)])
def test_intervals_of_stages_that_hold_as_much_are_just_those_of_the_cuts(layers, most, stages):
    """Of four stages, or of some of them."""
    bounds = np.full(4, float(most))
    every = Intervals.of(pipeline_of((0,) * layers, 4), np.inf, np.inf)
    found = every.restrict(bounds, layers, stages)
    rows = zip(found.start, found.end, found.first_stage, found.last_stage, strict=True)
    kept = {(i, a, b) for a, b, first, last in rows for i in range(first, last + 1)}
    cuts = ([*pairwise((0, *c, layers))] for c in combinations(range(1, layers), 3))
    able = [cut for cut in cuts if all(b - a <= most for a, b in cut)]
    asked = range(4)[stages]
    assert kept == {(i, a, b) for cut in able for i, (a, b) in enumerate(cut) if i in asked}
    assert (found.first_stage <= found.last_stage).all()


@pytest.mark.parametrize(
    ("seconds", "size", "longest", "usable", "layers"),
    [
        # One strategy in two modes: 3 of the first and 4 of the second take 10 s and 15 bytes.
        ([[2, 1]], [[1, 3]], 10, 15, 7),
        ([[1, 2]], [[3, 1]], 10, 15, 7),
        # 4.2 and 1.6; ten of the second where there is room, five of the first where there is not.
        ([[2, 1]], [[1, 3]], 10, 9, 4.2 + 1.6),
        ([[2, 1]], [[1, 3]], 10, 30, 10),
        ([[2, 1]], [[1, 3]], 10, 5, 5),
        ([[2, 1]], [[1, 3]], 10, 1, 1),
        ([[2, 1]], [[1, 3]], 10, 0, 0),
        ([[2, 1]], [[1, 3]], 10, -1, 0),
        # A part of a layer in one mode: 0.5 and 2.
        ([[2, 1]], [[1, 3]], 3, 6.5, 2.5),
        ([[1, 2]], [[3, 1]], 3, 6.5, 2.5),
        # Without a limit of time those with the fewest bytes.
        ([[2, 1]], [[1, 3]], np.inf, 15, 15),
        # Of the third mode alone; of the better of two strategies.
        ([[2, 2, 1]], [[3, 3, 1]], 10, 9, 9),
        ([[9, 9], [1, 1]], [[9, 9], [3, 1]], 10, 18, 10),
        ([[2, 1], [9, 9]], [[1, 3], [9, 9]], 10, 15, 7),
    ],
)
def test_the_most_layers_within_seconds_and_bytes(seconds, size, longest, usable, layers):
    """x and y layers of two modes: t x + u y seconds, m x + n y bytes."""
    columns = (np.array(one, float)[:, :, None] for one in (seconds, size))
    found = _relaxed_layers(*columns, np.array([float(longest)]), usable)
    assert found == pytest.approx([layers])


def test_the_last_stage_has_the_head_beside_its_layers():
    """In the seconds of four layers each stage has four, the last as many as the head leaves."""
    pipeline = pipeline_of((0,) * 8, 4)
    kinds = [kind.name for kind in layer_kinds(pipeline.task.model)]
    least = pipeline.layers.least_seconds.min(axis=0)
    layer, head = least[0], least[kinds.index("head")]
    assert layer < head < 2 * layer
    assert most_layers(pipeline, 4.01 * layer, np.inf).tolist() == [4, 4, 4, 2]
    # Those that take just so long are in, whatever the last digit is.
    for most in (3, 4, 5):
        found = [most_layers(pipeline, (most + more) * layer, np.inf)[0] for more in (-1e-6, 0)]
        assert found == [most - 1, most]
    assert most_layers(pipeline, 4.01 * layer + head, np.inf).tolist()[-1] == 4


def test_mixtures_of_recompute_by_hand():
    """Of three modes each pair, the heavier in at least one layer but for the first, which is all
    light too; in all of them, but where all heavy is the pair before."""
    layers = np.array([1, 4])
    pairs = [
        (low, high, least.tolist(), most.tolist())
        for low, high, least, most in _recompute_mixtures(3, layers)
    ]
    assert pairs == [(0, 1, [0, 0], [1, 4]), (0, 2, [1, 1], [1, 4]), (1, 2, [1, 1], [0, 3])]
    assert len(_recompute_mixtures(1, layers)) == 1


def test_gradients_may_be_absent_beside_activations_without_a_pipeline_alone():
    model = replace(Model.preset("gpt3-1.3b"), order=(0,) * 4)
    cluster = Cluster.profile("h100-sxm", gpus=8)
    freeing = software_profile("hf-trainer")
    assert freeing.frees_gradients
    task = Task(model, cluster, sequence=2048, global_batch=8, software=freeing)
    space = Space.of(task, {"pp": [1], "cp": [1], "ep": [1], "micro_batch": [1]})
    axes = stage_space(space, "test", "step-time", ("1f1b",)).axes
    layers = next(pipelines(task, {**axes, **most_overlap(task, axes)})).layers
    assert (layers.absent_gradient_bytes(1) > 0).any()
    assert layers.absent_gradient_bytes(2) == 0.0


def test_a_plan_that_needs_exactly_the_limit_is_ranked():
    model = replace(Model.preset("gpt3-1.3b"), order=(0,) * 4)
    task = Task(model, Cluster.profile("h100-sxm", gpus=8), sequence=2048, global_batch=8)
    plans = resolve(concat([Plan(tp=tp).table() for tp in (1, 2)]), 8)
    size = float(simulate(task, plans).memory_total.max())
    found = rank_plans_within(task, [plans], size)
    assert found is not None
    assert len(found) == 2
    fewer = rank_plans_within(task, [plans], size * (1 - 1e-9))
    assert fewer is not None
    assert len(fewer) == 1


@pytest.mark.parametrize(("pp", "layers"), [(2, 5), (3, 6), (4, 7)])
@pytest.mark.parametrize("most", [2, 3, 4])
def test_of_equal_layers_just_the_intervals_of_whole_cuts_are_there(pp, layers, most):
    """Stages of so many layers at most, by their seconds or by their bytes: no interval is kept
    that no cut has."""
    pipeline = pipeline_of((0,) * layers, pp)
    seconds = float(pipeline.layers.least_seconds[:, 0].min())
    held = float(pipeline.least_state_bytes[:, 0].min())
    cuts = ([*pairwise((0, *c, layers))] for c in combinations(range(1, layers), pp - 1))
    able = [cut for cut in cuts if all(b - a <= most for a, b in cut)]
    needed = {(i, a, b) for cut in able for i, (a, b) in enumerate(cut)}
    for longest, limit in ((most * seconds, np.inf), (np.inf, most * held)):
        found = Intervals.of(pipeline, longest, limit)
        rows = zip(found.start, found.end, found.first_stage, found.last_stage, strict=True)
        assert {(i, a, b) for a, b, first, last in rows for i in range(first, last + 1)} == needed


@pytest.mark.parametrize(
    ("layers", "chunks", "even"),
    [(8, 4, [2, 2, 2, 2]), (7, 3, [2, 2, 3]), (10, 4, [2, 3, 2, 3]), (2, 3, [0, 1, 1])],
)
def test_chunks_are_as_even_as_they_can_be(layers, chunks, even):
    found = [division(layers, chunks).tolist() for division in CHUNK_DIVISIONS]
    assert found == [even, sorted(even)[::-1], sorted(even)]


@pytest.mark.parametrize(("m", "v"), [(1, 1), (1, 4), (10, 1), (10, 4)])
def test_the_longest_stage_is_that_of_the_step(m, v):
    """Of stages of 8 seconds in all, a second of sends."""
    slowest = 8.0 if m * v == 1 else 2.0
    step = LeastSeconds(8.0, slowest, 1.0, m, v).step
    assert LeastSeconds(8.0, 0.0, 1.0, m, v).longest_stage(step) == pytest.approx(slowest)
