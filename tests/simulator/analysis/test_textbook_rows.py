"""Rows of the textbook by hand: the formula's number from sizes, and the simulator's beside it."""

from __future__ import annotations

import pytest

from plan3d.simulator.analysis.textbook import FormulaRow, memory_rows, time_rows
from plan3d.simulator.analysis.textbook_exchange import exchange_rows
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-125m"), Cluster.profile("a100-80gb-sxm", gpus=8),
    sequence=2048, global_batch=8,
)  # fmt: skip
N = 125_226_240
S = 4 * N
"""Bytes of all parameters, or their gradients, in fp32."""
EXCHANGES = {
    "server receives, n=8": 8 * S,
    "a worker, server, n=8": S,
    "a worker, ring, n=8": 2 * 7 / 8 * S,
    "a worker, ring, n=16": 2 * 15 / 16 * S,
    "a worker, graph, n=8": 2 * S,
    "a worker, one peer, n=16": S,
    "messages, ring, n=16": 30,
    "messages, tree, n=16": 8,
    "gradients in 16 bits": 2 * N,
    "a worker, tau = 8": 2 * 7 / 8 * S / 8,
    "a worker, 1-bit": S / 32,
    "a worker, 5 levels": (4 / 32 + 1 / 512) * S,
    "a worker, top 1 %": S / 50,
    "a worker, NEOLITHIC": S / 25,
}
STATES = {
    "weights, fp32": 4 * N,
    "gradients, fp32": 4 * N,
    "optimizer, fp32": 8 * N,
    "states, fp32": 16 * N,
    "states, mixed": 12 * N,
}


def by_name(rows: list[FormulaRow]) -> dict[str, FormulaRow]:
    return {row.name: row for row in rows}


@pytest.fixture(scope="module")
def exchanges() -> dict[str, FormulaRow]:
    return by_name(exchange_rows(TASK))


@pytest.mark.parametrize("name", EXCHANGES)
def test_what_workers_send(name: str, exchanges: dict[str, FormulaRow]) -> None:
    """The simulator's vocabulary is padded, by less than a thousandth of the parameters."""
    row = exchanges[name]
    assert row.textbook == pytest.approx(EXCHANGES[name], rel=1e-12)
    assert row.simulator == pytest.approx(row.textbook, rel=1e-3)


def test_states_and_activations() -> None:
    """12 layers of h = 768, a = 12 and s = 2,048; a layer of two tensor ranks, 4 at once."""
    values = 2 * 2048**2 * 12 + 14 * 2048 * 768
    rows = by_name(memory_rows(TASK, resolve(Plan(), 8)))
    for name, size in STATES.items():
        assert rows[name].textbook == size
        assert rows[name].simulator == pytest.approx(size, rel=1e-3)
    for b in (1, 8):
        assert rows[f"activations, b = {b}"].textbook == 4 * b * 12 * values
    split = by_name(memory_rows(TASK, resolve(Plan(tp=2, micro_batch=4), 8)))
    assert split["a layer, recompute=none"].textbook == 2 * 4 * values / 2
    assert split["a layer, recompute=full"].textbook == 2 * 4 * 2048 * 768 / 2


def test_days_of_training() -> None:
    """6 T N over the FLOP/s of eight GPUs at the simulator's utilisation."""
    costs = evaluate(TASK, Plan())
    row = by_name(time_rows(TASK, costs, 1e9))["training"]
    assert row.textbook == pytest.approx(6 * 1e9 * N / (8 * 312e12 * costs.mfu), rel=1e-3)
    assert row.simulator == pytest.approx(1e9 / costs.tokens_per_second)
