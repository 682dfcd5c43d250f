"""Provenance of a plan's kernel times: shares measured, interpolated, extrapolated, datasheet.

Weights are the seconds of the slowest pipeline rank. Where a table of whole layers applies, their
kernels have its origin and the ends keep the mix of the plan's kernels. For a few rows, never the
hot path.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..base.arrays import Value
from ..hardware import layer_tables
from ..hardware.gemm_tables import Origin
from ..hardware.precision import RECIPES
from ..hardware.provenance import TableFile
from ..layers.cost_columns import COMPUTE
from ..layers.layer_costs import layer_costs
from ..layers.layer_kinds import (
    LayerContext,
    is_tabled,
    layer_context,
    layer_kinds,
    layer_sizes,
    work_of,
)
from ..layers.placements import Layouts
from ..operators import kernel_times
from ..pipeline import stage_placement
from ..plan.plan import Plan
from ..rules.layer_run_rules import run_rows
from ..step import layer_run_stages, stages
from ..step.costs import Costs
from ..step.plan_groups import trained_task
from ..task import Task
from ..workload.model import Network

ORIGINS = tuple(origin.name.lower() for origin in Origin)
"""Keys of time_provenance(), from the surest on."""

_ORIGIN_PHRASES = {
    "measured": "at measured points",
    "interpolated": "between them or from formulas fitted to this GPU",
    "extrapolated": "outside them or from a sibling's table",
    "datasheet": "from datasheet and priors",
}


def time_provenance(costs: Costs, row: int = 0) -> dict[str, float]:
    """Share of one plan's kernel seconds by ORIGINS; they add up to 1.

    Recompute repeats kernels of the forward pass and counts as the others do.
    """
    table = costs.plans.take(slice(row, row + 1))
    task = trained_task(costs.task, table)
    parts = costs.row(row).compute_seconds
    shares = {
        "matmul": _gemm_shares(costs, row),
        "attention": _attention_shares(task),
        "memory_bound": _constant_shares(task, "kernels.memory_bound.efficiency"),
    }
    total = sum(parts[name] for name in shares)
    mixed = sum((share * (parts[name] / total) for name, share in shares.items()), np.zeros(1))
    whole = _layer_table_shares(costs, row)
    mixed = whole + (1 - whole.sum()) * mixed
    return dict(zip(ORIGINS, mixed.tolist(), strict=True))


def provenance_sentence(shares: Mapping[str, float]) -> str:
    """The shares of time_provenance() in words."""
    told = [
        f"{100 * share:.0f} % {_ORIGIN_PHRASES[n]}" for n, share in shares.items() if share >= 0.005
    ]
    return f"kernel times: {', '.join(told)}"


def _gemm_shares(costs: Costs, row: int) -> Value:
    """Share of the GEMM seconds of the slowest pipeline rank by origin; a listed layer's are those
    of GEMMs that it is none of."""
    table = costs.plans.take(slice(row, row + 1))
    task = trained_task(costs.task, table)
    if isinstance(task.model, Network):
        return _all_of_origin(Origin.EXTRAPOLATED)
    recipe = RECIPES[int(table.precision[0])]
    out = np.zeros(len(Origin))
    for plan, counts in _slowest_rank(costs.row(row), task, table):
        out += _gemm_seconds(layer_context(task, recipe, stages.strategies(plan)), counts)
    out /= out.sum()
    return out


def _slowest_rank(costs: Costs, task: Task, table: Plan) -> list[tuple[Plan, Value]]:
    """What the slowest rank of one plan runs: strategies, and layers of each kind in them."""
    if table.segments:
        (group,) = costs.groups
        seconds = (group.stages.forward + group.stages.backward)[:, group.skeleton[0]]
        rows, _ = run_rows(table, task)
        counts = layer_run_stages.plan_counts(task.model, table)[:, 0]
        runs = np.flatnonzero(table.segments.ranks(table.pp)[0] == seconds.argmax())
        return [(rows.take(slice(i, i + 1)), counts[i]) for i in runs]
    return [(table, _slowest_counts(costs, task, table))]


def _slowest_counts(costs: Costs, task: Task, table: Plan) -> Value:
    """Layers of each kind on the slowest pipeline rank of a uniform plan, of its costs."""
    (group,) = costs.groups
    seconds = (group.stages.forward + group.stages.backward)[:, group.skeleton[0]]
    layouts = Layouts(task, stage_placement.layout)
    (layout,) = layouts.place(table)
    counts: Value = layouts.counts[layout, seconds.argmax()]
    return counts


def _gemm_seconds(local: LayerContext, counts: Value) -> Value:
    """Seconds of the GEMMs of some layers by origin."""
    out, cluster = np.zeros(len(Origin)), local.task.cluster
    for kind, count in zip(layer_kinds(local.task.model), counts, strict=True):
        work = work_of(kind, local)
        if work is None or not work.gemms:
            continue
        recipe = local.recipe.of_head() if work.wide else local.recipe
        seconds = kernel_times.gemm_seconds(work.gemms, 1, cluster.accelerator, recipe, 1.0)
        found = kernel_times.gemm_origins(work.gemms, 1, cluster, recipe)
        out += count * np.bincount(found.ravel(), seconds.ravel(), len(Origin))
    return out


def _layer_table_shares(costs: Costs, row: int) -> Value:
    """Share of the slowest rank's kernel seconds that a table of layers gives, by origin."""
    out, total = np.zeros(len(Origin)), 0.0
    table = costs.plans.take(slice(row, row + 1))
    task = trained_task(costs.task, table)
    tables = task.cluster.accelerator.layer_tables
    if isinstance(task.model, Network) or task.software.label not in tables:
        return out
    tabled = np.array([is_tabled(kind) for kind in layer_kinds(task.model)])
    for plan, counts in _slowest_rank(costs.row(row), task, table):
        recipe = RECIPES[int(plan.precision[0])]
        s = stages.strategies(plan)
        local = layer_context(task, recipe, s)
        kinds = layer_costs(task, recipe, s).table[0]
        seconds = counts * kinds[:, COMPUTE].sum(axis=1)
        total += seconds.sum()
        if local.layer_ratio is not None:
            out[_layer_origin(local)] += seconds[tabled].sum()
    return out / total


def _layer_origin(local: LayerContext) -> Origin:
    """Origin of a whole layer's time; a table fitted to steps is no measurement of it."""
    entry = local.task.cluster.accelerator.layer_tables[local.task.software.label]
    table, sizes = layer_tables.table_of(entry), layer_sizes(local.task, local.s)
    found = Origin(int(layer_tables.origins(table, sizes)[0]))
    alone = not isinstance(entry, TableFile) or entry.provenance.measured
    return found if alone else max(found, Origin.INTERPOLATED)


def _all_of_origin(origin: Origin) -> Value:
    """Everything of one origin."""
    out = np.zeros(len(Origin))
    out[origin] = 1.0
    return out


def _constant_shares(task: Task, key: str) -> Value:
    """Everything of the origin of a constant of the profile."""
    measured = task.cluster.provenance[key].measured
    return _all_of_origin(Origin.INTERPOLATED if measured else Origin.DATASHEET)


def _attention_shares(task: Task) -> Value:
    """Shares of the attention core: flash has a measured forward and a ratio for the backward,
    materialised attention is a composition of assumptions."""
    if not task.software.flash_attention:
        return _all_of_origin(Origin.DATASHEET)
    backward = task.cluster.accelerator.attention.backward_ratio
    forward = _constant_shares(task, "kernels.attention.efficiency")
    both = forward + backward * _constant_shares(task, "kernels.attention.backward_ratio")
    out: Value = both / (1 + backward)
    return out
