"""A roofline of the model's matrix products: one point a GEMM against the machine's limits.

intensity = 2 m n k / (bytes of both operands and the result),  roof = min(peak, BW intensity)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..hardware.accelerator import peak_flops
from ..hardware.precision import RECIPES, Recipe
from ..layers.layer_kinds import layer_context, layer_kinds, work_of
from ..operators import kernel_times
from ..plan.plan import Plan
from ..rules.layer_run_rules import run_rows
from ..step import stages
from ..step.costs import Costs
from ..step.plan_groups import trained_task
from ..task import Task
from ..workload.model import Network


@dataclass(frozen=True, slots=True)
class GemmPoint:
    """A GEMM of one rank and micro-batch, forward."""

    kind: str
    """The layer kind that runs it: 'block 0', 'head'."""
    sides: tuple[int, int, int]
    """m, n and k."""
    batch: int
    """Products of a group (experts)."""
    intensity: float
    """FLOP a byte."""
    rate: float
    """FLOP/s predicted inside a training step."""
    roof: float
    """FLOP/s that peak and memory bandwidth allow."""


def gemm_points(costs: Costs) -> list[GemmPoint]:
    """Every distinct GEMM of one plan; of one with segments, those of all its runs.

    Empty for a network that is a list of layers: its work is not known as GEMMs.
    """
    if isinstance(costs.task.model, Network):
        return []
    plan = costs.row().plans.take(slice(0, 1))
    task = trained_task(costs.task, plan)
    recipe = RECIPES[int(plan.precision[0])]
    rows = run_rows(plan, task)[0] if plan.segments else plan
    found: dict[tuple[float, ...], GemmPoint] = {}
    for row in range(rows.rows):
        for point in _strategy_points(task, recipe, rows.take(slice(row, row + 1))):
            found.setdefault((*point.sides, point.batch, point.roof), point)
    return list(found.values())


def _strategy_points(task: Task, recipe: Recipe, row: Plan) -> Iterator[GemmPoint]:
    machine = task.cluster.accelerator
    local = layer_context(task, recipe, stages.strategies(row))
    for kind in layer_kinds(task.model):
        work = work_of(kind, local)
        if work is None or not work.gemms:
            continue
        own = recipe.of_head() if work.wide else recipe
        seconds = kernel_times.gemm_seconds(work.gemms, 1, machine, own, task.software.sustained)
        sizes = kernel_times.stack_gemms(work.gemms, 1)[:, :, 0].T
        for (m, n, k, batch), s in zip(sizes.tolist(), seconds[:, 0].tolist(), strict=True):
            flops = 2 * m * n * k * batch
            intensity = flops / (own.linear.bytes_moved(m, n, k) * batch)
            peak = peak_flops(machine, own.linear.peak)
            roof = min(peak, machine.memory_bandwidth * intensity)
            sides = (round(m), round(n), round(k))
            yield GemmPoint(kind.name, sides, round(batch), intensity, flops / s, roof)
