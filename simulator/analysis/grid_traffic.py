"""Traffic of a layer on a grid of tensor ranks, by axis and link, for a few rows.

Bytes are those a rank sends for one micro-batch, forward and backward, of a model's first layer;
recompute sends what the forward pass sends again and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.units import format_count, format_seconds
from ..hardware.precision import RECIPES
from ..layers import communication
from ..layers.layer_kinds import layer_context, layer_kinds
from ..plan.fields import spell
from ..plan.plan import Plan
from ..plan.tensor_grid import GridKind, MeshCollective, elements_sent, grid_of
from ..step import stages
from ..step.costs import Costs


@dataclass(frozen=True)
class AxisTraffic:
    """What a layer sends along one axis of a grid."""

    axis: str
    ranks: int
    domains: int
    """Fast domains that the ranks of a group span."""
    operations: dict[str, float]
    """Bytes by collective, of weights or of activations: 'all_gather of weights'."""
    seconds: float
    """One after another, whatever hides."""


def axis_traffic(costs: Costs, row: int = 0) -> list[AxisTraffic]:
    """The axes with several ranks of one plan's grid, innermost first; none where it is 1d."""
    plan = costs.plans.take(slice(row, row + 1)).table()
    if not plan.tp_grid[0]:
        return []
    recipe = RECIPES[int(plan.precision[0])]
    local = layer_context(costs.task, recipe, stages.strategies(plan))
    ahead, behind = communication.grid_messages(layer_kinds(costs.task.model)[0], local)
    found = [c for one in (*ahead, *behind) for part in one for c in part]
    grid = grid_of(plan.tp_grid, plan.tp)
    out = []
    for axis, size in grid.mesh.items():
        along = [c for c in found if c.axis == axis]
        if size[0] > 1 and along:
            group = communication.axis_group(grid, axis, costs.task.cluster)
            seconds = float(communication.mesh_seconds(along, local)[0])
            sent = {
                what: recipe.wire * float(np.ravel(elements_sent(some, grid.mesh))[0])
                for what, some in _by_operation(along).items()
            }
            domains = int(np.ravel(group.domains)[0])
            out.append(AxisTraffic(axis, int(size[0]), domains, sent, seconds))
    return out


def _by_operation(found: list[MeshCollective]) -> dict[str, list[MeshCollective]]:
    out: dict[str, list[MeshCollective]] = {}
    for c in found:
        what = "activations" if "tokens" in c.tensor.dimensions else "weights"
        out.setdefault(f"{c.operation} of {what}", []).append(c)
    return out


def grid_sentences(costs: Costs, row: int = 0) -> list[str]:
    """What is sent and taken for granted on a grid; none where tensor parallelism is 1d."""
    traffic = axis_traffic(costs, row)
    plan = costs.plans.take(row)
    if not plan.tp_grid:
        return []
    fast = costs.task.cluster.fast.name
    axes = [_axis_sentence(one, fast) for one in traffic]
    return [
        f"tp_grid={spell('tp_grid', plan.tp_grid)}: a layer sends per micro-batch and rank "
        f"{'; '.join(axes)}",
        _caveats(plan),
    ]


def _axis_sentence(one: AxisTraffic, fast: str) -> str:
    where = f"inside {fast}" if one.domains == 1 else f"over {one.domains} fast domains"
    parts = [
        f"{format_count(size)}B in {what.replace('_', '-', 1)}"
        for what, size in one.operations.items()
    ]
    sent = f"along {one.axis} ({one.ranks} ranks {where}) {', '.join(parts)}"
    return f"{sent}: {format_seconds(one.seconds)}"


def _caveats(plan: Plan) -> str:
    whole = (
        "sums of norms over split hidden states are neglected; axes do not slow each other; no run "
        "on a grid is among those that the interval of the step comes from"
    )
    if grid_of(plan.tp_grid, plan.tp).kind in (GridKind.TWO_D, GridKind.TWO_HALF_D):
        return f"SUMMA's broadcasts are costed as all-gathers of the same bytes; {whole}"
    return whole
