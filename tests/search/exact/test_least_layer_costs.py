"""Costs of layers that the boxes of one search share, and the seconds of parts alone."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from plan3d.search.exact.bounds import PARAMETERS
from plan3d.search.exact.least_layer_costs import KERNELS, LayerTables, LeastLayerCosts
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.precision import RECIPES
from plan3d.simulator.layers.cost_columns import SECONDS
from plan3d.simulator.layers.layer_costs import layer_cost_function, part_seconds
from plan3d.simulator.layers.layer_kinds import OpenExchanges
from plan3d.simulator.plan.fields import STRATEGY
from plan3d.simulator.plan.plan import Plan, concat, from_columns, resolve
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.stages import strategies
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("mixtral-8x7b"),
    Cluster.profile("h100-sxm", gpus=64),
    sequence=4096,
    global_batch=256,
)
RECIPE = RECIPES[0]
FIRST = ["tp=2 dp=32", "tp=2 dp=32 recompute=full", "tp=2 dp=32", "tp=4 dp=16 ep=8"]
LATER = ["tp=4 dp=16 ep=8", "tp=8 dp=8 micro_batch=4", "tp=2 dp=32", "dp=64 ep=4"]


def table(texts: list[str]) -> Plan:
    return resolve(concat([Plan.parse(text).table() for text in texts]), TASK.gpus)


@pytest.mark.parametrize("texts", [FIRST, LATER, [*LATER, *FIRST], FIRST[:1]])
def test_tables_of_a_search_are_those_of_each_strategy(texts: list[str]) -> None:
    tables, price = LayerTables(), layer_cost_function(TASK.model)
    for asked in (FIRST, LATER, texts):
        plans = table(asked)
        costs, which = tables.costs(TASK, RECIPE, plans)
        alone = price(TASK, RECIPE, strategies(plans))
        np.testing.assert_array_equal(costs.table[which], alone.table)
        np.testing.assert_array_equal(costs.working_set[:, which], alone.working_set)
        assert len(costs.table) == len(set(asked))
        # None is costed again.
        assert (np.diff(tables.costed[RECIPE][0]) > 0).all()


def test_strategies_are_numbered_without_gaps() -> None:
    """All that are between the least and the largest value of each field, whatever they are."""
    spans = {"tp": (2, 4), "micro_batch": (3, 3), "recompute": (0, 2), "ep": (5, 6)}
    grid = np.array([*product(*(range(low, high + 1) for low, high in spans.values()))]).T
    columns = {name: np.zeros(18, np.int64) for name in STRATEGY}
    columns |= dict(zip(spans, grid, strict=True))
    tables = LayerTables()
    tables.spans = {**tables.spans, **spans}
    keys = tables._keys(from_columns(columns))
    assert keys is not None
    assert sorted(keys.tolist()) == [*range(3 * 1 * 3 * 2)]
    # What is costed is forgotten where a value lies beyond.
    for beyond, spanned in ((0, (3, 3)), (1, (3, 4))):
        tables.costed = {RECIPE: (np.zeros(0, np.int64), None)}  # type: ignore[dict-item]
        tables._keys(from_columns({**columns, "micro_batch": grid[1] + beyond}))
        assert bool(tables.costed) == (not beyond)
        assert tables.spans["micro_batch"] == spanned


def test_a_few_more_strategies_than_are_known_are_costed_beside_them() -> None:
    """One beside twelve: a copy of all is not worth it, and both stand where they are asked for."""
    many = [f"tp={tp} dp={64 // tp} micro_batch={b}" for tp in (1, 2, 4, 8) for b in (1, 2, 4)]
    asked = [many[7], "tp=8 dp=8 micro_batch=3", many[2]]
    tables, price = LayerTables(), layer_cost_function(TASK.model)
    tables.costs(TASK, RECIPE, table(many))
    costs, which = tables.costs(TASK, RECIPE, table(asked))
    alone = price(TASK, RECIPE, strategies(table(asked)))
    np.testing.assert_array_equal(costs.table[which], alone.table)
    assert len(costs.table) == 3
    assert len(tables.costed[RECIPE][0]) == len(many)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3", "nemotron-3-nano-30b-a3b"])
def test_parts_are_those_of_the_cost_table(model: str) -> None:
    """Also where layers without experts are costed once for all ways to divide experts."""
    task = replace(TASK, model=Model.preset(model))
    columns = strategies(table([*FIRST, *LATER, "tp=2 dp=32 ep=4 etp=2", "tp=2 dp=32 ep=8"]))
    costs = layer_cost_function(task.model)(task, RECIPE, columns)
    parts = part_seconds(task, RECIPE, columns)
    np.testing.assert_array_equal(parts, costs.table[..., SECONDS].transpose(1, 2, 0))


def test_parameters_depend_on_sizes_alone() -> None:
    """What bounds of weights take from one strategy of those with the same tp, ep and etp."""
    sizes = ["tp=4 dp=16 ep=2", "tp=4 dp=16 ep=2 etp=2", "dp=64 ep=4"]
    others = [
        "",
        " recompute=full micro_batch=2 overlap_ep=1",
        " sequence_parallel=1 micro_batch=4",
    ]
    price = layer_cost_function(TASK.model)
    for size in sizes:
        fields = [Plan.parse(size + more).table() for more in others]
        columns = strategies(resolve(concat(fields), TASK.gpus))
        found = price(TASK, RECIPE, columns).table[..., PARAMETERS]
        np.testing.assert_array_equal(found, np.broadcast_to(found[:1], found.shape))


@pytest.mark.parametrize(
    ("field", "codes", "changed"),
    [
        ("sequence_parallel", (0, 1), {1: [0, 1, 2, 3]}),
        ("cp_comm", (0, 1), {1: [0, 1, 2, 3], 0: [2, 3]}),
        ("recompute", (0, 1, 2), {0: [0, 1, 2, 3]}),
    ],
)
def test_only_strategies_that_a_value_changes_are_costed_again(
    field: str, codes: tuple[int, ...], changed: dict[int, list[int]]
) -> None:
    """Rows of all at the first value. Contexts are divided in the last two; tensor ranks of experts
    must have sequence parallelism, and one rank has no use for it; no recompute takes least."""
    s = strategies(table(["dp=64", "tp=2 dp=32", "cp=2 dp=32", "tp=2 cp=2 dp=16"]))
    chosen = LeastLayerCosts({field: codes})._choices(TASK, s, {field: codes})
    assert {int(getattr(one, field)[0]): rows.tolist() for rows, one in chosen} == changed


OPEN = {
    "sequence_parallel": (0, 1),
    "recompute": (0, 1, 2),
    "overlap_tp": (0, 1),
    "overlap_ep": (0, 1),
    "cp_comm": (0, 1, 2),
    "expert_dispatch": (0, 1, 2),
}


@pytest.mark.parametrize("machine", ["h100-sxm", "b200"])
@pytest.mark.parametrize("sequence", [4096, 65536])
def test_no_values_of_open_fields_take_less_than_the_least_seconds(
    machine: str, sequence: int
) -> None:
    """A ring of contexts hides where exchanges of experts, which take its queue, do not: also in
    layers without experts. How tokens reach their experts changes what is moved, too."""
    task = Task(
        Model.preset("deepseek-v3"),
        Cluster.profile(machine, gpus=64),
        sequence=sequence,
        global_batch=256,
    )
    sizes = ["cp=2 dp=32 ep=8", "tp=2 cp=4 dp=8 ep=4", "tp=4 dp=16 ep=2", "dp=64 ep=8"]
    plans = resolve(concat([Plan.parse(text).table() for text in sizes]), task.gpus)
    least = LeastLayerCosts(OPEN).seconds(task, RECIPE, strategies(plans))
    legal = np.zeros(plans.rows, int)
    for values in product(*OPEN.values()):
        own = {n: np.full(plans.rows, v) for n, v in zip(OPEN, values, strict=True)}
        changed = replace(plans, **own)
        rows = np.flatnonzero(legal_rows(changed, task))
        legal[rows] += 1
        parts = part_seconds(task, RECIPE, strategies(changed), open_exchanges=OpenExchanges())
        sums = np.stack([parts[:, KERNELS].sum(axis=1), parts.sum(axis=1)])[..., rows]
        assert (least[..., rows] <= sums * (1 + 1e-12)).all(), (values, rows)
    assert (legal > 1).all()
