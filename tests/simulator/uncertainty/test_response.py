"""The simulator as a function of its constants: tables agree with it where they were made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.rules.validity import check
from plan3d.simulator.step.evaluate import evaluate, simulate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty import response
from plan3d.simulator.uncertainty.constants import CONSTANTS, with_constants
from plan3d.simulator.uncertainty.prior import spreads_of
from plan3d.simulator.uncertainty.response import NODES, SimulatedResponse, TabulatedResponse
from plan3d.simulator.workload.model import Model

NAMES = tuple(CONSTANTS)
SPREADS = spreads_of(NAMES)
TEXTS = (
    "tp=8 pp=2 micro_batch=1",
    "tp=2 pp=4 micro_batch=2 recompute=full",
    "zero=3 micro_batch=1",
)


@pytest.fixture(scope="module")
def exact() -> SimulatedResponse:
    task = Task(
        Model.preset("gpt3-13b"),
        Cluster.profile("a100-80gb-sxm", gpus=32),
        sequence=2048,
        global_batch=64,
    )
    plans = [resolve(Plan.parse(text), task.gpus) for text in TEXTS]
    return SimulatedResponse(
        [(task, concat([plan.table() for plan in plans]), np.arange(3))], NAMES
    )


def test_at_zero_it_is_the_simulator(exact):
    task, plans, _ = exact.parts[0]
    values, _ = exact.linearised(np.zeros(len(NAMES)))
    each = [evaluate(task, plans.take(row)).step_seconds for row in range(3)]
    assert values == pytest.approx(np.log(each), rel=1e-12)


def test_the_common_factor_multiplies_every_step(exact):
    d = np.zeros(len(NAMES))
    d[NAMES.index("common")] = 0.25
    assert exact.steps(d) - exact.steps(0 * d) == pytest.approx([0.25] * 3, rel=0.02)
    assert exact.linearised(d)[1][:, 0] == pytest.approx([1, 1, 1], rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_more_seconds_never_make_a_step_shorter(exact, name):
    d = np.zeros(len(NAMES))
    d[NAMES.index(name)] = CONSTANTS[name].spread
    assert (exact.steps(d) >= exact.steps(0 * d) - 1e-12).all()


def test_everything_that_is_timed_has_a_constant(exact):
    """All seconds but the optimizer's follow them."""
    d = np.full(len(NAMES), np.log(2.0))
    d[0] = 0.0
    d[NAMES.index("contention")] = 0.0
    task, plans, _ = exact.parts[0]
    costs = evaluate(task, plans.take(0))
    still = costs.seconds["optimizer"]
    doubled = np.exp(exact.steps(d))[0]
    assert doubled == pytest.approx(2 * (costs.step_seconds - still) + still, rel=0.03)


def test_a_table_agrees_at_its_nodes_and_between_them(exact):
    spreads, table = SPREADS, TabulatedResponse.of_response(exact, SPREADS)
    for k in (1, 4):
        for node in (NODES[0], NODES[4], NODES[-1]):
            d = np.zeros(len(NAMES))
            d[k] = node * spreads[k]
            assert table.linearised(d)[0] == pytest.approx(exact.steps(d), abs=1e-12)
    d = 0.7 * spreads
    assert table.linearised(d)[0] == pytest.approx(exact.steps(d), abs=0.05)
    assert table.take(np.array([2])).linearised(d)[0] == pytest.approx(table.linearised(d)[0][[2]])


MIXTURE = Task(
    Model.preset("mixtral-8x7b"),
    Cluster.profile("h100-sxm", gpus=64),
    sequence=4096,
    global_batch=128,
)
DENSE = Task(
    Model.preset("llama-7b"),
    Cluster.profile("a100-80gb-sxm", gpus=64),
    sequence=2048,
    global_batch=128,
)
KINDS = (
    (MIXTURE, ("tp=2 ep=4 pp=2", "tp=2 ep=8 precision=fp8", "zero=3 ep=8", "tp=4 ep=4 pp=4")),
    (MIXTURE, ("tp=2 pp=4 virtual_stages=2 ep=2 optimizer=muon", "tp=2 ep=8 pp=2 sync=ring")),
    (MIXTURE, ("cp=4 ep=8", "tp=2 cp=2 cp_comm=a2a ep=2", "tp=4 overlap_tp=1 pp=4 schedule=zb-h1")),
    (
        DENSE,
        ("zero=3 offload_optimizer=50", "tp=4 tp_grid=2x2 micro_batch=2", "pp=8 schedule=dualpipe"),
    ),
    (DENSE, ("dp=64 sync=gossip topology=ring", "sync=parameter-server zero=0", "pp=4 zero=1")),
    (DENSE, ("tp=2 pp=4 zero=1 segments=8:recompute=full|8|8|8",)),
    (replace(MIXTURE, software="torch"), ("zero=3 ep=8", "zero=2 recompute=full tp=2")),
)
"""Tasks, and plans of which each has seconds of another kind."""


@pytest.mark.parametrize(("task", "texts"), KINDS, ids=lambda one: str(one)[:40])
def test_constants_as_columns_are_each_of_them_alone(task, texts):
    """One table with every plan again and again beside a set of constants each: those of a task
    with the set's constants, whatever part of a step they are in."""
    plans = [resolve(Plan.parse(text), task.gpus) for text in texts]
    for plan in plans:
        check(plan, task)
    table = concat([plan.table() for plan in plans])
    sets = np.concatenate([0 * SPREADS[None], np.diag(SPREADS), SPREADS[None] * [[-1], [2]]])
    alone = [
        np.log(simulate(with_constants(task, dict(zip(NAMES, d, strict=True))), table).step)
        for d in sets.tolist()
    ]
    together = SimulatedResponse([(task, table, np.arange(table.rows))], NAMES).steps(sets)
    assert together == pytest.approx(np.array(alone), abs=1e-12)
    assert (together[1] > together[0]).all()


def test_many_sets_are_simulated_piece_by_piece(exact, monkeypatch):
    """With at most 7 rows at once 3 plans go through 5 sets in passes of 2, 2 and 1."""
    sets = np.random.default_rng(0).normal(size=(5, len(NAMES))) * SPREADS
    whole = exact.steps(sets)
    monkeypatch.setattr(response, "MOST_ROWS", 7)
    assert exact.steps(sets) == pytest.approx(whole, abs=1e-12)


def test_a_task_without_changes_is_itself(exact):
    task = exact.parts[0][0]
    assert with_constants(task, {"gemm": 0.0, "common": 0.0}) is task
    assert with_constants(task, {"common": 0.3}) is not task
