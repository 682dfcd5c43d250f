"""The textbook's formulas of one plan, beside what the simulator says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from plan3d.search.layer_ilp import operator_graph
from plan3d.search.layer_ilp.block_partition import chain_of_products
from plan3d.search.layer_ilp.tensor_partition import partition
from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.analysis.closed_forms import chinchilla_tokens
from plan3d.simulator.analysis.textbook import (
    FormulaRow,
    check_transformer,
    memory_rows,
    time_rows,
)
from plan3d.simulator.analysis.textbook_exchange import exchange_rows, rate_rows
from plan3d.simulator.analysis.textbook_pipeline import pipeline_rows
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task

PRODUCTS = "products of three weights"
"""Topic of the tensor partition's rows."""
WIDTHS = (4.0, 1.0, 1.0)
"""Widths of h1, h2 and y in the lectures' example y = W3 W2 W1 x."""
SPLITS = {
    ("rows", "columns", "columns"): "h2 + 2 y",
    ("rows", "rows", "columns"): "h1 + 2 y",
}
"""What two partitions of it send, in ring units: a gather or scatter is 1, an all-reduce 2."""
ALL_MEMORY = 1e18
"""Bytes of a GPU on which everything fits."""


@dataclass(frozen=True, kw_only=True)
class TextbookRequest:
    """A plan that the formulas are of."""

    task: Task
    plan: Plan | None = None
    """None for the fastest that fits."""
    precision: str | None = None
    """Number formats of the plan that is searched."""
    tokens: float | None = None
    """Training tokens; None for 20 a parameter."""
    took: float | None = None
    """Seconds that a run of these tokens took."""
    full_recompute: bool = False
    """Whether 8 T N is counted of that run."""


@dataclass(frozen=True)
class TextbookAnswer:
    """Formulas and the plan that they are of."""

    task: Task
    costs: Costs
    """Of the plan."""
    tokens: float
    searched: bool
    """Whether the plan is the fastest of a search."""
    fits: bool
    rows: Sequence[FormulaRow]

    @property
    def plan(self) -> Plan:
        return self.costs.plans.take(0)


def textbook(request: TextbookRequest) -> TextbookAnswer:
    """Every formula of a task and its plan, which need not fit.

    Raises InputError for a network that is no transformer and for a plan that breaks a rule.
    """
    task = request.task
    check_transformer(task)
    costs = _searched(request) if request.plan is None else evaluate(task, request.plan).row()
    tokens = request.tokens
    if tokens is None:
        tokens = chinchilla_tokens(task.model.active_parameters)
    plan = resolve(costs.plans.take(0), task.gpus).take(0)
    rows = [
        *memory_rows(task, plan),
        *time_rows(task, costs, tokens, request.took, request.full_recompute),
        *pipeline_rows(task, plan),
        *_product_rows(max(int(plan.tp), 2)),
        *exchange_rows(task),
        *rate_rows(task),
    ]
    return TextbookAnswer(task, costs, tokens, request.plan is None, bool(costs.fits), rows)


def _searched(request: TextbookRequest) -> Costs:
    """The fastest plan that fits; where none does, the fastest on GPUs with enough memory."""
    task = request.task
    choose = {} if request.precision is None else {"precision": [request.precision]}
    ranking = Ranking(top=1, families=True, choose=choose)
    best = rank_plans(task, ranking).unless_interrupted().best
    if best is not None:
        return best
    accelerator = replace(task.cluster.accelerator, memory=ALL_MEMORY)
    roomy = replace(task, cluster=replace(task.cluster, accelerator=accelerator))
    best = rank_plans(roomy, ranking).unless_interrupted().best
    simplest = Plan.parse(f"precision={request.precision}") if request.precision else Plan()
    return evaluate(task, simplest if best is None else best.plans.take(0)).row()


def _product_rows(ranks: int) -> list[FormulaRow]:
    """y = W3 W2 W1 x over some ranks: 3 ring units against 6, and the integer program's."""
    graph, prices = chain_of_products(WIDTHS, ranks), operator_graph.ring_units(ranks)
    h1, h2, y = WIDTHS
    by_hand = dict(zip(SPLITS, (h2 + 2 * y, h1 + 2 * y), strict=True))
    rows = []
    for split, formula in SPLITS.items():
        index = {f"W{i}": int(name == "columns") for i, name in enumerate(split, start=1)}
        found = float(operator_graph.cost(graph, prices, {"x": 0, "y": 0, **index}))
        name = ", ".join(split)
        why = f"y = W3 W2 W1 x, h1 = {h1:g}, h2 = {h2:g}, y = {y:g} wide, {ranks} ranks"
        rows.append(FormulaRow(PRODUCTS, name, formula, by_hand[split], found, "", why))
    best = partition(graph, prices, time_limit=10.0)
    why = f"{best.choice['W1']}, {best.choice['W2']}, {best.choice['W3']} by the integer program"
    least = min(by_hand.values())
    return [*rows, FormulaRow(PRODUCTS, "the cheapest", "min", least, float(best.cost), "", why)]
