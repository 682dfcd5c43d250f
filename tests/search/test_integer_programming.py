"""Is the integer program's plan the best there is, within memory, and never a worse one?"""

from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan3d.search import integer_programming
from plan3d.search.finder import find_plans
from plan3d.search.layer_plans import as_segments, proposals
from plan3d.search.layer_program import LayerProgram
from plan3d.search.layer_step import Step
from plan3d.search.layer_table import LayerTable, pipelines
from plan3d.search.space import Space
from plan3d.search.stage_floor import fastest
from plan3d.simulator.errors import InputError
from plan3d.simulator.hardware import Cluster
from plan3d.simulator.model import Model
from plan3d.simulator.plan import Plan, from_columns, resolve
from plan3d.simulator.rules import legal
from plan3d.simulator.segments import concat, of_stages
from plan3d.simulator.software import software_profile
from plan3d.simulator.step import evaluate, simulate
from plan3d.simulator.task import Task

FIXED = {
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


def every_plan(question, choose):
    """All plans: stages, micro-batches, cuts, and a strategy for each layer."""
    space = Space.of(question, choose)
    shared = Plan(schedule=0, dp=1, zero=0, overlap_grad_reduce=1, overlap_param_gather=1)
    shared = replace(shared, sequence_parallel=choose["sequence_parallel"][0], overlap_p2p=0)
    for pipeline in pipelines(space, shared):
        layers = question.model.layers
        own = np.argwhere(pipeline.legal).tolist()
        strategies = [
            {"tp": pipeline.tp[s], "dp": pipeline.dp[s], "zero": z}
            | {"recompute": pipeline.recompute[r]}
            for s, r, z in own
        ]
        rows = [
            of_stages([[{"layers": 1, **s} for s in stage] for stage in stages])
            for stages in _cut(strategies, layers, pipeline.stages)
            if _in_turn(question.model.order, stages)
        ]
        first = own[0][0]
        fields = {**shared.columns(), "pp": pipeline.stages, "tp": pipeline.tp[first]}
        fields |= {"dp": pipeline.dp[first], "micro_batch": pipeline.shares[first]}
        columns = {name: np.full(len(rows), value) for name, value in fields.items()}
        yield from_columns(columns, segments=concat(rows))


CASES = {
    "recompute": ("gpt3-1.3b", 5, {"pp": [2], "tp": [2], "recompute": [0, 1, 2], "zero": [1]}),
    "deep": ("gpt3-1.3b", 8, {"pp": [4], "tp": [1], "recompute": [0, 2], "zero": [1]}),
    "tp": ("llama-7b", 4, {"pp": [1, 2], "tp": [1, 2, 4], "recompute": [0, 2], "zero": [1]}),
    "zero": ("llama-7b", 4, {"pp": [2], "tp": [2], "recompute": [0, 2], "zero": [0, 1, 3]}),
    "zero 2": ("llama-7b", 4, {"pp": [2, 4], "tp": [1], "recompute": [0, 2], "zero": [1, 2]}),
    "kinds": ("deepseek-v3", 4, {"pp": [2, 4], "tp": [2], "recompute": [0, 2], "zero": [1]}),
    "tied": ("gpt3-125m", 5, {"pp": [1, 2, 4], "tp": [1], "recompute": [0, 2], "zero": [0, 1]}),
}


@cache
def brute_force(name):
    """Step seconds and bytes of every plan of a case."""
    model, layers, choose = CASES[name]
    question = task(model, layers)
    steps, sizes = [], []
    for plans in every_plan(question, choices(choose)):
        assert legal(plans, question).all()
        costs = simulate(question, plans)
        steps.append(costs.step)
        sizes.append(costs.memory_total)
    return np.concatenate(steps), np.concatenate(sizes)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("room", [0.0, 0.2, 0.6, 1.0])
def test_the_search_is_brute_force(name, room):
    steps, sizes = brute_force(name)
    limit = (sizes.min() + room * (sizes.max() - sizes.min())) * (1 + 1e-9)
    best = steps[sizes <= limit].min()
    model, layers, choose = CASES[name]
    question = task(model, layers)
    space = Space.of(question, choices(choose))
    asked = {"objective": "step-time", "limit": limit, "top": 1}
    found = integer_programming.search(space, **asked, tolerance=0.0)
    assert found.complete
    assert found.costs.step[0] == pytest.approx(best, rel=1e-9)
    assert found.bound == pytest.approx(best, rel=1e-9)
    assert found.costs.memory_total[0] <= limit
    assert legal(found.costs.plans, question).all()
