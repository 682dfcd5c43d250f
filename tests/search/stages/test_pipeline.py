"""The least seconds of a pipeline are below every plan of it, uniform or not."""

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.search.space.space import Space
from plan3d.search.stages.pipeline import LeastSeconds, pipelines
from plan3d.search.stages.stage_plans import (
    _divide_evenly,
    _larger_chunks_first,
    plan_of,
    rank_plans_within,
    with_explicit_stages,
)
from plan3d.search.stages.stage_space import SHARED_FIELDS, most_overlap, stage_space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import concat
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASKS = {
    "dense": ("gpt3-1.3b", 16, 2048),
    "experts": ("mixtral-8x7b", 32, 2048),
    "several kinds": ("deepseek-v3", 64, 2048),
    "layer list": ("amoebanet-1.8b", 8, 1),
}


def pipelines_of(name, schedule="1f1b"):
    model, gpus, sequence = TASKS[name]
    task = Task(
        Model.preset(model),
        Cluster.profile("h200-sxm", gpus=gpus),
        sequence=sequence,
        global_batch=32,
    )
    space = Space.of(task, {"schedule": [schedule], "micro_batch": [1, 4]})
    stages = stage_space(space, "test", "step-time", (schedule,))
    axes = {**stages.axes, **most_overlap(task, stages.axes)}
    return stages, [*pipelines(task, axes)]


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("gpipe", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TASKS)
def test_no_uniform_plan_is_faster_than_the_least_seconds_of_its_pipeline(name, schedule):
    stages, found = pipelines_of(name, schedule)
    least = {
        (p.pp, p.micro_batches, *(p.shared[n] for n in ("cp", "ep", "sequence_parallel"))): p
        for p in found
    }
    met = 0
    for plans in stages.chunks():
        costs = simulate(stages.task, plans)
        m = stages.task.global_batch // (plans.dp * plans.micro_batch)
        keys = (plans.pp, m, plans.cp, plans.ep, plans.sequence_parallel)
        slowest = costs.step / np.maximum(m, 1)
        for row, key in enumerate(zip(*(k.tolist() for k in keys), strict=True)):
            if key in least:
                bound = least[key].least_seconds
                assert bound.step <= costs.step[row] * (1 + 1e-12)
                assert bound.slowest <= slowest[row] * (1 + 1e-12)
                met += 1
    assert met > 20


def test_longest_stage_is_what_the_step_leaves():
    """(m - 1) t + traversal + sends = step where t is longer than the mean, m t + sends at most."""
    least = LeastSeconds(traversal=4.0, slowest=1.0, sends=0.5, micro_batches=9)
    assert least.step == 8 * 1.0 + 4.0 + 0.5
    assert least.longest_stage(12.5) == pytest.approx(1.0)
    assert LeastSeconds(1.0, 1.0, 0.5, 9).longest_stage(10.0) == pytest.approx(9.5 / 9)
    assert LeastSeconds(4.0, 1.0, 0.5, 1).longest_stage(12.5) == 12.0


def test_every_strategy_of_a_pipeline_is_a_legal_plan():
    _, found = pipelines_of("experts")
    for pipeline in not_empty(each for each in found if each.pp == 1):
        runs = [
            [[{"layers": pipeline.task.model.layers, "tp": int(pipeline.tp[s]),
               "dp": int(pipeline.dp[s]), "zero": z, "recompute": pipeline.recompute[r]}]]
            for s, r, z in np.argwhere(pipeline.legal).tolist()
        ]  # fmt: skip
        plans = concat([plan_of(pipeline, stages) for stages in runs])
        assert legal_rows(plans, pipeline.task).all()
        assert (plans.tp * plans.dp * plans.cp == pipeline.task.gpus).all()


def test_a_plan_is_ranked_once_and_only_where_it_fits():
    stages, _ = pipelines_of("dense")
    costs = simulate(stages.task, next(stages.chunks()).take(slice(0, 40)))
    limit = float(np.median(costs.memory_total))
    written = [*with_explicit_stages(costs, 40)]
    found = rank_plans_within(stages.task, [*written, *written], limit)
    assert (np.diff(found.step) >= 0).all()
    assert (found.memory_total <= limit).all()
    assert len({str(plan) for plan in found.plans}) == len(found)
    assert found.step[0] == pytest.approx(costs.step[costs.memory_total <= limit].min(), rel=1e-12)
    assert rank_plans_within(stages.task, written, 0.0) is None
    assert set(SHARED_FIELDS) <= set(found.plans.columns())


@pytest.mark.parametrize(
    ("layers", "chunks", "spread", "first"),
    [
        (10, 4, [2, 3, 2, 3], [3, 3, 2, 2]),
        (7, 3, [2, 2, 3], [3, 2, 2]),
        (8, 4, [2, 2, 2, 2], [2, 2, 2, 2]),
        (2, 3, [0, 1, 1], [1, 1, 0]),
        (5, 1, [5], [5]),
    ],
)
def test_chunks_of_a_rank_are_as_even_as_they_can_be(layers, chunks, spread, first):
    assert _divide_evenly(layers, chunks).tolist() == spread
    assert _larger_chunks_first(layers, chunks).tolist() == first
