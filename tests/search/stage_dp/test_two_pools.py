"""Pipelines over two kinds of machines: one kind is a special case, and brute force agrees."""

from dataclasses import replace
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.launch_files.frameworks import framework
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.options import NEVER
from plan3d.search.stage_dp.two_pools import pooled_pipelines, search
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.operators.collectives import send
from plan3d.simulator.plan.plan import from_columns
from plan3d.simulator.plan.stage_layout import Segments
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.layer_run_stages import hop_seconds
from plan3d.simulator.step.stage_costs import stage_costs
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

FEW = {"tp": ["1", "2"], "micro_batch": ["1", "2"], "zero": ["0", "1"], "recompute": ["none"]}
FEW |= {"cp": ["1"], "sequence_parallel": ["0"]}


def task(cluster, gpus, model="gpt3-350m", layers=5, batch=8):
    cut = replace(Model.preset(model), order=(0,) * layers)
    where = Cluster.profile(cluster, gpus=gpus)
    return Task(cut, where, sequence=1024, global_batch=batch)


def test_pools_of_one_kind_are_one_cluster():
    half = task("h100-sxm", 8, layers=7, batch=32)
    limit = 0.9 * half.cluster.accelerator.memory
    few = {**FEW, "tp": ["4"], "pp": ["2", "4"], "micro_batch": ["1"]}
    found = search((half, half), (limit, limit), (np.inf, np.inf), few)
    whole = replace(half, cluster=replace(half.cluster, gpus=16))
    own = {**few, "virtual_stages": ["1"]}
    exact = rank_plans(whole, Ranking(backend="dynamic-programming", choose=own))
    assert found.complete
    assert exact.complete
    assert found.plan.step_seconds == pytest.approx(exact.best.step_seconds, rel=1e-9)
    assert sum(stage.layers for stage in found.plan.stages) == 7
    assert 0 < found.seconds_searching < 100
    (alike,) = found.plan.plan
    largest = max(stage.memory_bytes for stage in found.plan.stages)
    assert largest == pytest.approx(evaluate(whole, alike).memory_bytes, rel=1e-9)


@cache
def cost(pool, strategy, start, end, zero):
    """Costs of one stage of a pool, by the simulator."""
    at = np.array([strategy])
    one = np.array([[end - start]])
    tp, dp = pool.tp[at][:, None], pool.dp[at][:, None]
    runs = Segments(np.zeros_like(one), one, tp, dp, np.zeros_like(one), np.zeros_like(one))
    plans = from_columns(pool.columns(at), (), runs)
    found = stage_costs(pool.task, plans, np.array([start]), [zero])[zero]
    return {name: float(getattr(found, name)[0]) for name in found.__slots__}


def step_of(pipeline, stages, limits):
    """The step of the equation in simulator/step/stage_costs.py; infinity where it does not fit."""
    pools = [0] * pipeline.counts[0] + [1] * pipeline.counts[1]
    costs = [cost(pipeline.pools[pool], *stage) for pool, stage in zip(pools, stages, strict=True)]
    flights = pipeline.in_flight
    for pool, one, n in zip(pools, costs, flights, strict=True):
        if one["static_bytes"] + n * one["micro_batch_bytes"] > limits[pool]:
            return np.inf
    hops, each = 0.0, pipeline.sends / (pipeline.pp - 1)
    for (a, one), (b, other) in zip(
        zip(pools[:-1], costs[:-1], strict=True),
        zip(pools[1:], costs[1:], strict=True),
        strict=True,
    ):
        sizes = np.array(one["sent_bytes"]), np.array(other["received_bytes"])
        tasks = [pipeline.pools[pool].task for pool in (a, b)]
        if a == b:
            hops += each * float(hop_seconds(tasks[0], *sizes))
        else:
            away = np.array(True)
            hops += each * max(float(send(max(sizes), away, t.cluster)) for t in tasks)
    t, b, f, reduce, gather, optimizer = (
        np.array([one[name] for one in costs])
        for name in (
            "seconds",
            "backward",
            "forward",
            "reduce_seconds",
            "gather_seconds",
            "optimizer_seconds",
        )
    )
    ends = [np.maximum(x - (np.cumsum(p) - p), 0).max() for x, p in ((reduce, b), (gather, f))]
    ends.append(optimizer.max())
    widths = [int(pipeline.pools[pools[i]].tp[stages[i][0]]) for i in (0, -1)]
    tied = costs[0 if widths[0] <= widths[1] else -1]["tied_embedding_seconds"]
    return (pipeline.micro_batches - 1) * t.max() + t.sum() + hops + sum(ends) + tied


def one_strategy(pipeline, pools, chosen):
    """Whether stages have one tp, dp and ZeRO stage."""
    both = [(pool.tp, pool.dp) for pool in pipeline.pools]
    kinds = {
        (int(both[p][0][s]), int(both[p][1][s]), z) for p, (s, z) in zip(pools, chosen, strict=True)
    }
    return len(kinds) == 1


def brute_force(tasks, limits, alike=False):
    """The least step; with `alike` of stages that have one tp, dp and ZeRO stage."""
    best = np.inf
    for pipeline in pooled_pipelines(tasks, FEW):
        layers, pools = pipeline.task.model.layers, [0] * pipeline.counts[0]
        pools += [1] * pipeline.counts[1]
        mine = limits[::-1] if pipeline.swapped else limits
        own = [
            [
                (s, z)
                for s, z in product(range(pipeline.pools[p].tp.size), (0, 1))
                if pipeline.pools[p].legal[s, 0, z]
            ]
            for p in pools
        ]
        for cuts in combinations(range(1, layers), pipeline.pp - 1):
            ends = (*cuts, layers)
            for chosen in product(*own):
                if alike and not one_strategy(pipeline, pools, chosen):
                    continue
                stages = [
                    (s, start, end, z)
                    for (s, z), start, end in zip(chosen, (0, *cuts), ends, strict=True)
                ]
                best = min(best, step_of(pipeline, stages, mine))
    return best


@pytest.mark.parametrize("share", [1.0, 0.0855])
def test_brute_force_agrees(share):
    tasks = task("a100-40gb-sxm", 1, layers=4), task("h100-sxm", 2, layers=4)
    memory = [one.cluster.accelerator.memory for one in tasks]
    limits = 0.9 * memory[0] * share, 0.9 * memory[1]
    found = search(tasks, limits, (np.inf, np.inf), FEW)
    assert found.complete
    assert found.plan.step_seconds == pytest.approx(brute_force(tasks, limits), rel=1e-9)
    for stage in found.plan.stages:
        assert stage.memory_bytes <= limits[stage.cluster == "h100-sxm"]
    # Where plans were tried first, what they rule out is no better.
    plain = [
        rank_plans(one, Ranking(choose={**FEW, "virtual_stages": ["1"]}, top=1)) for one in tasks
    ]
    like = [one.costs.plans for one in plain if one.costs is not None]
    hinted = search(tasks, limits, (np.inf, np.inf), FEW, like=like)
    assert like
    assert hinted.complete
    assert hinted.plan.step_seconds == found.plan.step_seconds


@pytest.mark.slow
def test_brute_force_agrees_on_what_a_framework_launches():
    tasks = task("a100-40gb-sxm", 2, layers=4), task("h100-sxm", 2, layers=4)
    found = search(tasks, (4e10, 4e10), (np.inf, np.inf), FEW, framework=framework("megatron"))
    assert found.complete
    assert found.plan.step_seconds == pytest.approx(brute_force(tasks, (4e10, 4e10), alike=True))
    assert found.plan.plan.take(0).segments is not None
    assert search(tasks, (4e10, 4e10), (np.inf, np.inf), FEW).bound <= found.bound


def test_the_faster_pool_has_more_layers_and_a_slow_plan_is_none():
    tasks = (task(name, 2, "llama-7b", layers=8) for name in ("a100-80gb-sxm", "h100-sxm"))
    tasks, limits, few = tuple(tasks), (60e9, 60e9), {**FEW, "tp": ["1"], "pp": ["2"]}
    found = search(tasks, limits, (np.inf, np.inf), few)
    layers = {stage.cluster: 0 for stage in found.plan.stages}
    for stage in found.plan.stages:
        layers[stage.cluster] += stage.layers
    assert layers["h100-sxm"] > layers["a100-80gb-sxm"] > 0
    faster = 0.9 * found.plan.step_seconds
    assert search(tasks, limits, (faster, np.inf), few).plan is None


def test_what_the_program_does_not_have_is_refused():
    tasks = task("a100-80gb-sxm", 2), task("h100-sxm", 2)
    with pytest.raises(InputError, match="virtual_stages"):
        search(tasks, (6e10, 6e10), (np.inf, np.inf), {"virtual_stages": ["2"]})
    with pytest.raises(InputError, match="one value of precision"):
        search(tasks, (6e10, 6e10), (np.inf, np.inf), {"precision": ["bf16", "fp16"]})


@pytest.mark.parametrize(
    ("layers", "megatron", "counts"),
    [
        # A layer for each stage of both pools, first one pool and then the other.
        (2, False, {(1, 1)}),
        (3, False, {(1, 1), (1, 2), (2, 1)}),
        (4, False, {(1, 1), (1, 2), (2, 1), (2, 2)}),
        # Of a framework stages have as many GPUs in both.
        (4, True, {(1, 1), (2, 2)}),
    ],
)
def test_pools_are_cut_into_no_more_stages_than_there_are_layers(layers, megatron, counts):
    tasks = task("a100-80gb-sxm", 2, layers=layers), task("h100-sxm", 2, layers=layers)
    found = [*pooled_pipelines(tasks, FEW, framework("megatron") if megatron else None)]
    for swapped in (False, True):
        own = {one.counts for one in found if one.swapped == swapped}
        assert own == counts
        first = {one.pools[0].task.cluster.name for one in found if one.swapped == swapped}
        assert first == {"h100-sxm" if swapped else "a100-80gb-sxm"}
    assert all(one.pp == sum(one.counts) for one in not_empty(found))


def test_stages_of_the_best_plan_are_left_whatever_time_it_leaves():
    """In the seconds of its slowest stage: what other stages do at least is what the faster pool
    needs. No bound of a pipeline is above a plan of it."""
    tasks = task("a100-80gb-sxm", 2, layers=5), task("h100-sxm", 2, layers=5)
    limits = (7e10, 7e10)
    found = search(tasks, limits, (np.inf, np.inf), FEW)
    stages, layers = found.plan.stages, [stage.layers for stage in found.plan.stages]
    ends = np.cumsum([0, *layers]).tolist()
    clusters = [stage.cluster for stage in stages]
    mine = [
        one
        for one in pooled_pipelines(tasks, FEW)
        if one.micro_batches == found.plan.micro_batches
        and {**one.shared} == {**found.plan.shared}
        and [one.pools[i].task.cluster.name for i in np.repeat([0, 1], one.counts)] == clusters
    ]
    assert len(mine) == 1
    slowest = max(stage.seconds for stage in stages)
    for longest in (slowest * (1 + 1e-9), 2 * slowest, np.inf):
        own = limits[::-1] if mine[0].swapped else limits
        table = mine[0].table(own, longest, NEVER)
        for i, entries in enumerate(table.entries):
            held = {*zip(entries.start.tolist(), entries.end.tolist(), strict=True)}
            assert (ends[i], ends[i + 1]) in held
    assert mine[0].least_seconds.step <= found.plan.step_seconds
    assert mine[0].least_seconds.slowest <= slowest
    assert mine[0].table(own, 0.5 * slowest, NEVER) is None


@pytest.mark.parametrize(
    ("first", "second", "slowest", "traversal"),
    [
        # In all 3 (1 + 4) + 1 + 2 = 18 and 8 s, w = 9 / 4. Of each kind the less of s and w s',
        # 2.25 x 5 + 1 + 2, over 1 + 2 w stages.
        ([[4, 3, 1, 2], [3, 4, 2, 2]], [[2, 1, 2, 1], [1, 2, 2, 1]], 14.25 / 5.5, 5 + 1 + 1),
        # The one block of ten seconds is on a stage of either pool.
        ([[10, 1, 1, 1]] * 2, [[10, 1, 1, 1]] * 2, 10, 10 + 4 + 1 + 1),
    ],
)
def test_the_slowest_of_stages_of_two_pools_does_its_share_and_any_layer(
    first, second, slowest, traversal
):
    """A block of one kind, four of another, an embedding and a head on one stage and two."""
    model = replace(Model.preset("deepseek-v3"), order=(0, 1, 1, 1, 1), mtp_layers=0)
    tasks = [
        Task(model, Cluster.profile(name, gpus=2), sequence=1024, global_batch=8)
        for name in ("a100-80gb-sxm", "h100-sxm")
    ]
    one = next(
        one
        for one in pooled_pipelines(tuple(tasks), FEW)
        if one.counts == (1, 2) and not one.swapped
    )
    for pool, seconds in zip(one.pools, (first, second), strict=True):
        vars(pool.layers)["least_seconds"] = np.array(seconds, float)
    found = one.least_seconds
    assert found.slowest == pytest.approx(slowest)
    assert found.traversal == pytest.approx(traversal)
    sends = [pool.least_seconds.sends for pool in one.pools]
    assert found.sends == min(sends) < max(sends)


def test_a_pool_leaves_the_other_one_the_layers_that_it_has_time_for():
    """In 4 s one A100 has a layer of 4 s and both H100 have two of 2 s, whatever modes take more.
    What is before the last stage is done in two, where the faster pool may do it."""
    tasks = task("a100-80gb-sxm", 1, layers=5), task("h100-sxm", 2, layers=5)
    one = next(
        one for one in pooled_pipelines(tasks, FEW) if one.counts == (1, 2) and not one.swapped
    )
    for pool, seconds in zip(one.pools, (4, 2), strict=True):
        vars(pool.layers)["least_seconds"] = np.outer([1.0, 2.0], [seconds, 0.1, 0.1])
    found = one.table((7e10, 7e10), 4.0, NEVER)
    held = [
        {*zip(entries.start.tolist(), entries.end.tolist(), strict=True)}
        for entries in found.entries
    ]
    assert held[0] == {(0, 1)}
    assert (1, 3) in held[1]
    assert (3, 5) in held[2]


@pytest.mark.parametrize(
    ("shares", "least", "longest"),
    [((0.25, 0.5), [0, 2, 6], [4, 2, 2]), ((0.5, 0.25), [0, 1, 4], [2, 4, 4])],
)
def test_a_pool_leaves_the_other_one_the_layers_that_it_can_hold(shares, least, longest):
    """Of eight layers four are a whole stage of the pool that holds more, so that at most four are
    before the second of three stages and at most four behind it."""
    tasks = task("a100-80gb-sxm", 1, layers=8), task("h100-sxm", 2, layers=8)
    one = next(
        one for one in pooled_pipelines(tasks, FEW) if one.counts == (1, 2) and not one.swapped
    )
    limits = 7e10, 5e10
    for pool, share, limit in zip(one.pools, shares, limits, strict=True):
        vars(pool)["least_state_bytes"] = np.outer([1.0, 2.0], [share * limit] * 3)
    found = one.table(limits, np.inf, NEVER)
    assert [int(entries.start.min()) for entries in found.entries] == least
    assert [int(entries.start.max()) for entries in found.entries] == [0, 4, 7]
    assert [int((entries.end - entries.start).max()) for entries in found.entries] == longest
