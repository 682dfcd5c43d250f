"""The critical paths of uneven chunks give what the event simulation finds."""

import numpy as np
import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.pipeline.dependency_graph import graph
from plan3d.simulator.pipeline.event_simulation import StageTimes, simulate
from plan3d.simulator.pipeline.schedules import SCHEDULES
from plan3d.simulator.pipeline.stage_placement import Cut, balanced_layers, chunk_counts, layout
from plan3d.simulator.pipeline.uneven_chunks import Path, seconds
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.plan_timeline import timeline_of
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

KINDS = ("block 0", "embedding", "head")
FORWARD = np.array([1.0, 0.1, 0.0])
"""Seconds of each kind; a backward pass takes twice as long."""


def both_ways(p, v, chunks, head, m):
    """Seconds of a step by the paths (as stages does), by the mean chunk, and by events."""
    cut = Cut((0,) * sum(chunks), KINDS, p, chunks)
    each = FORWARD + np.array([0, 0, head])
    placed = layout(cut)
    ranks = 3 * placed.counts @ each
    mean = m * ranks.max() + 3 * (placed.total @ each) / v - ranks.max() / v
    passes = np.concatenate([each, 2 * each])
    paths = seconds((placed.paths @ passes)[:, None], np.array([float(m)]))[0]
    times = chunk_counts(cut) @ each
    stages = StageTimes(forward=times, input_gradient=times, weight_gradient=times)
    events = simulate(graph(SCHEDULES["interleaved"], p, v, m), stages)
    return max(paths, mean), mean, float(events.step_seconds)


def test_balanced_layers_take_as_long_as_the_events():
    """One path of many decides: 1 % on average, more where chunks are of one layer or two."""
    found = np.array(
        [
            both_ways(p, v, balanced_layers(p * v + more, p * v), head, groups * p)
            for p in (3, 4, 8, 16)
            for v in (2, 3, 5)
            for more in range(0, 3 * p * v, max(p * v // 3, 1))
            for head in (0.5, 2.0)
            for groups in (1, 5)
        ]
    )
    paths, mean = (np.abs(found[:, i] / found[:, 2] - 1) for i in (0, 1))
    assert paths.mean() < 0.01
    assert paths.mean() < mean.mean() / 2
    assert paths.max() < 0.15


@pytest.mark.parametrize("groups", [1, 2, 4, 16])
@pytest.mark.parametrize("head", [0.7, 1.2])
@pytest.mark.parametrize(
    ("p", "v", "layers"), [(16, 7, 126), (16, 3, 61), (12, 3, 94), (8, 5, 126)]
)
def test_paths_are_nearer_than_the_mean_chunk(p, v, layers, head, groups):
    paths, mean, events = both_ways(p, v, balanced_layers(layers, p * v), head, groups * p)
    assert paths == pytest.approx(events, rel=0.03)
    assert abs(paths - events) <= abs(mean - events) + 1e-9


def test_even_chunks_have_one_path():
    p, v = 4, 3
    paths = layout(Cut((0,) * 24, KINDS, p, (2,) * 12)).paths
    assert not paths[Path.BEFORE :].any()
    assert paths[Path.LAST].tolist() == 2 * [6, 0, 1]
    assert paths[Path.FILL].tolist() == 2 * [6, 1, 0]
    one, mean, events = both_ways(p, v, (2,) * 12, 1.0, 8)
    assert one == pytest.approx(events, rel=0.01)
    assert mean == pytest.approx(events, rel=0.01)


@pytest.mark.parametrize(
    "text", ["pp=16 virtual_stages=7", "pp=16 virtual_stages=3", "pp=8 virtual_stages=5"]
)
@pytest.mark.parametrize("groups", [1, 8])
def test_llama_405b_in_uneven_chunks(text, groups):
    plan = Plan.parse(f"tp=8 {text}")
    cluster = Cluster.profile("h100-sxm", gpus=2048)
    batch = groups * plan.pp * (2048 // (8 * plan.pp))
    task = Task(Model.preset("llama-3.1-405b"), cluster, sequence=8192, global_batch=batch)
    x = timeline_of(task, plan)
    assert x.step_seconds == pytest.approx(x.closed_form, rel=0.03)
