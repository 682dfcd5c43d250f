"""Stages in chunks: the dynamic program's plan is that of brute force, its bound below it."""

from dataclasses import replace
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest

from plan3d import find_plans as public_find_plans
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.options import SearchOptions
from plan3d.search.result.tolerances import TOLERANCE
from plan3d.search.space.space import Space
from plan3d.search.stage_dp import dynamic_programming
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, from_columns, resolve
from plan3d.simulator.plan.stage_layout import concat_segments, segments_of_stages
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.evaluate import evaluate, simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

USUAL = {
    "pp": [2],
    "virtual_stages": [2],
    "tp": [1, 2],
    "zero": [1],
    "recompute": ["none", "full"],
    "sequence_parallel": [1],
    "micro_batch": [1, 2, 3, 4, 6],
    "cp": [1],
    "ep": [1],
}
FEW = {"tp": [2], "zero": [0], "micro_batch": [1, 2]}
CASES = {
    "tp": ("llama-3.1-8b", 6, {"recompute": ["none"]}),
    "zero": ("llama-3.1-8b", 6, {"zero": [0, 1, 3], "recompute": ["none"], "tp": [1]}),
    "slow": ("gpt3-1.3b", 5, {"zero": [0, 1], "tp": [1]}),
    "three ranks": ("gpt3-1.3b", 7, {"pp": [3]} | FEW),
    "three chunks": (
        "llama-3.1-8b",
        7,
        {"virtual_stages": [3]} | FEW,
    ),
    "breadth first": ("llama-3.1-8b", 5, {"schedule": ["breadth-first"]}),
    "experts": ("mixtral-8x7b", 5, {"ep": [1, 2], "tp": [1, 2], "recompute": ["none"]}),
}


def task(name):
    model, layers, choose = CASES[name]
    gpus = 6 if choose.get("pp") == [3] else 4
    slow = 2e9 if name == "slow" else None
    cluster = Cluster.profile("h100-sxm", gpus, gpus_per_node=2, inter_node_bandwidth=slow)
    whole = Model.preset(model)
    small = replace(whole, order=(whole.order[0],) * layers)
    batch = 12 if gpus == 6 else 8
    return Task(small, cluster, sequence=2048, global_batch=batch), {**USUAL, **choose}


def every_plan(question, choose):
    """Steps and bytes of every plan in chunks, those of a rank alike to a layer: any number of
    layers of a chunk in the heavier mode, a rank's own tp and ZeRO stage."""
    layers, (pp,), (v,) = question.model.layers, choose["pp"], choose["virtual_stages"]
    gpus, modes = question.gpus // pp, choose["recompute"]
    own = [(tp, z) for tp, z in product(choose["tp"], choose["zero"]) if gpus % tp == 0]
    steps, sizes = [], []
    for ep, ranks, beside in product(choose["ep"], product(own, repeat=pp), (False, True)):
        wide, rows = any(tp > 1 for tp, _ in ranks), []
        if beside and (ep == 1 or wide):  # an H100 has one queue
            continue
        for inner in combinations(range(1, layers), pp * v - 1):
            cut = np.diff((0, *inner, layers))
            if np.ptp(cut.reshape(v, pp), axis=0).max() > 1:
                continue
            for heavy in product(*(range(n + 1) if len(modes) > 1 else [0] for n in cut.tolist())):
                rows.append([
                    chunk(n, k, *ranks[c % pp], gpus, modes)
                    for c, (n, k) in enumerate(zip(cut.tolist(), heavy, strict=True))
                ])  # fmt: skip
        schedule = choose.get("schedule", ["interleaved"])[0]
        row = Plan(tp=ranks[0][0], dp=gpus // ranks[0][0], pp=pp, virtual_stages=v, ep=ep)
        on = {"overlap_grad_reduce": 1, "overlap_param_gather": any(z for _, z in ranks)}
        on |= {"overlap_p2p": 1, "overlap_ep": beside, "overlap_tp": wide}
        on |= {"expert_dispatch": ep > 1}
        row = replace(row, schedule=schedule, zero=ranks[0][1], sequence_parallel=wide, **on)
        columns = resolve(row, question.gpus).columns().items()
        columns = {n: np.full(len(rows), int(c)) for n, c in columns}
        runs = concat_segments([segments_of_stages(row) for row in rows])
        for share in choose["micro_batch"]:
            if question.global_batch % (share * row.dp):
                continue
            more = {"micro_batch": np.full(len(rows), share)}
            plans = from_columns({**columns, **more}, (), runs)
            costs = simulate(question, plans)
            ok = legal_rows(plans, question)
            steps.append(costs.step[ok])
            sizes.append(costs.memory_total[ok])
    return np.concatenate(steps), np.concatenate(sizes)


def chunk(layers, heavy, tp, zero, gpus, modes):
    """The runs of a chunk."""
    parts = zip((heavy, layers - heavy), (2, 0), strict=True)
    same = {"tp": tp, "dp": gpus // tp, "zero": zero}
    return [{"layers": n, **same, "recompute": mode} for n, mode in parts if n]


@pytest.mark.parametrize("name", CASES)
def test_the_best_plan_is_that_of_brute_force_and_the_bound_below_it(name):
    question, choose = task(name)
    steps, sizes = every_plan(question, {"schedule": ["interleaved"], **choose})
    assert steps.size > 5
    for share in (0.0, 0.3, 1.0):
        limit = float(np.quantile(sizes, share)) * (1 + 1e-9)
        best = steps[sizes <= limit].min()
        options = SearchOptions(limit=limit, top=1)
        found = dynamic_programming.search(Space.of(question, choose), options)
        step = found.best.step_seconds
        assert found.bound <= best * (1 + 1e-9)
        assert step == pytest.approx(best, rel=1e-9)
        assert found.complete == (found.gap <= TOLERANCE)
        assert found.best.memory_bytes <= limit


PUBLIC = {"mixtral": ("mixtral-8x7b", 32, 4, 64), "dense": ("llama-3.1-8b", 16, 8, 32)}
ASKED = {"choose": {"pp": [1, 2], "cp": [1]}, "headroom": 0.5, "top": 2}


@cache
def default_search(name):
    """A question, and the best plan of its default search."""
    model, gpus, layers, batch = PUBLIC[name]
    whole = Model.preset(model)
    small = replace(whole, order=(whole.order[0],) * layers)
    question = Task(small, Cluster.profile("h100-sxm", gpus), sequence=4096, global_batch=batch)
    return question, public_find_plans(question, **ASKED).best


@pytest.mark.parametrize("backend", ["dynamic-programming", "integer-programming"])
@pytest.mark.parametrize("name", PUBLIC)
def test_a_search_of_stages_is_never_behind_the_default_one(name, backend):
    """Also where that changes a field that searches keep fixed."""
    question, default = default_search(name)
    found = public_find_plans(question, backend=backend, time_limit=0.3, **ASKED)
    step = found.best.step_seconds
    assert len(found.plans) <= 2
    assert step <= default.step_seconds * (1 + 1e-12)
    assert found.bound <= step * (1 + 1e-12)
    assert evaluate(question, found.plans[0]).step_seconds == pytest.approx(step, rel=1e-12)


def test_virtual_stages_alone_may_be_asked_for():
    question, _ = task("tp")
    choose = {**USUAL, "virtual_stages": [3]}
    found = rank_plans(question, Ranking(backend="dynamic-programming", choose=choose, headroom=0))
    assert set(found.costs.plans.virtual_stages) == {3}
    assert found.compared.not_interleaved == found.compared.overall


def test_what_only_uniform_plans_cover_is_said():
    two_kinds = replace(Model.preset("deepseek-v3"), order=(0, 1) * 3)
    question = replace(task("tp")[0], model=two_kinds)
    asked = {"choose": USUAL, "backend": "dynamic-programming"}
    assert "several kinds of layers" in rank_plans(question, Ranking(**asked)).uncovered[0]
    assert rank_plans(task("tp")[0], Ranking(**asked)).uncovered == ()
