"""What do a plan's kernel times rest on? Shares measured, interpolated, extrapolated, datasheet.

Weights are the seconds of the slowest pipeline rank. For a few rows, never the hot path.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from . import kernels, layers, schedules, segment_stages, stages
from .gemm_tables import Origin
from .layer_kinds import Local, layer_kinds, local_strategies
from .network import Network
from .plan import Plan, Precision
from .precision import RECIPES, Recipe
from .segment_rules import run_rows
from .step import Costs, simulate
from .task import Task

Value = NDArray[np.float64]

ORIGINS = tuple(origin.name.lower() for origin in Origin)
"""Keys of time_provenance(), from the surest on."""

_WORDS = {
    "measured": "at measured points",
    "interpolated": "between them or from formulas fitted to this GPU",
    "extrapolated": "outside them or from a sibling's table",
    "datasheet": "from datasheet and priors",
}


def time_provenance(costs: Costs, row: int = 0) -> dict[str, float]:
    """Share of one plan's kernel seconds by ORIGINS; they add up to 1.

    Recompute repeats kernels of the forward pass and counts as the others do.
    """
    task, table = costs.task, costs.plans.take(slice(row, row + 1))
    parts = simulate(task, table, single=True).compute_seconds
    shares = {
        "matmul": _gemms(costs, row),
        "attention": _attention(task),
        "memory_bound": _of(task, "kernels.memory_bound.efficiency"),
    }
    total = sum(parts[name] for name in shares)
    mixed = sum((share * (parts[name] / total) for name, share in shares.items()), np.zeros(1))
    return dict(zip(ORIGINS, mixed.tolist(), strict=True))


def sentence(shares: dict[str, float]) -> str:
    """The shares of time_provenance() in words."""
    told = [f"{100 * share:.0f} % {_WORDS[n]}" for n, share in shares.items() if share >= 0.005]
    return f"kernel times: {', '.join(told)}"


def _gemms(costs: Costs, row: int) -> Value:
    """Share of the GEMM seconds of the slowest pipeline rank by origin; a listed layer's are those
    of GEMMs that it is none of."""
    task, table = costs.task, costs.plans.take(slice(row, row + 1))
    if isinstance(task.model, Network):
        return _all(Origin.EXTRAPOLATED)
    recipe = RECIPES[Precision(int(table.precision[0]))]
    out = np.zeros(len(Origin))
    for plan, counts in _on_slowest_rank(task, table):
        out += _gemm_seconds(local_strategies(task, recipe, stages.strategy(plan)), counts)
    out /= out.sum()
    return out


def _on_slowest_rank(task: Task, table: Plan) -> list[tuple[Plan, Value]]:
    """What the slowest rank of one plan runs: strategies, and layers of each kind in them."""
    if table.segments:
        (group,) = simulate(task, table).groups
        seconds = group.stages.forward + group.stages.backward
        rows, _ = run_rows(table, task)
        counts = segment_stages.run_counts(task.model, table)[:, 0]
        runs = np.flatnonzero(table.segments.stage[0] == seconds[:, 0].argmax())
        return [(rows.take(slice(i, i + 1)), counts[i]) for i in runs]
    return [(table, _slowest_counts(task, table))]


def _slowest_counts(task: Task, table: Plan) -> Value:
    """Layers of each kind on the slowest pipeline rank of a uniform plan."""
    placed: list[schedules.Layout] = []

    def watched(
        order: tuple[int, ...],
        kinds: tuple[str, ...],
        pp: int,
        chunks: tuple[int, ...],
        place: int,
        mtp_stage: int,
    ) -> schedules.Layout:
        placed.append(schedules.every_rank(order, kinds, pp, chunks, place, mtp_stage))
        return placed[-1]

    (group,) = simulate(task, table, watched).groups
    seconds = group.stages.forward + group.stages.backward
    counts: Value = placed[0].counts[seconds[:, 0].argmax()]
    return counts


def _gemm_seconds(local: Local, counts: Value) -> Value:
    """Seconds of the GEMMs of some layers by origin."""
    out, cluster = np.zeros(len(Origin)), local.task.cluster
    for kind, count in zip(layer_kinds(local.task.model), counts, strict=True):
        work = layers.work_of(kind, local)
        if work is None or not work.gemms:
            continue
        recipe = _sixteen_bit(local.recipe) if work.sixteen_bit else local.recipe
        seconds = kernels.gemm_seconds(work.gemms, 1, cluster.accelerator, recipe, 1.0)
        found = kernels.gemm_origins(work.gemms, 1, cluster, recipe)
        out += count * np.bincount(found.ravel(), seconds.ravel(), len(Origin))
    return out


def _sixteen_bit(recipe: Recipe) -> Recipe:
    """What runs the LM head: fp8 recipes leave it in 16 bits."""
    if recipe.gemm_width != "8bit":
        return recipe
    return replace(recipe, gemm_width="16bit", gemm_format=recipe.attention_format)


def _all(origin: Origin) -> Value:
    """Everything of one origin."""
    out = np.zeros(len(Origin))
    out[origin] = 1.0
    return out


def _of(task: Task, key: str) -> Value:
    """Everything of the origin of a constant of the profile."""
    measured = task.cluster.provenance[key].measured
    return _all(Origin.INTERPOLATED if measured else Origin.DATASHEET)


def _attention(task: Task) -> Value:
    """Shares of the attention core: flash has a measured forward and a ratio for the backward,
    materialised attention is a composition of assumptions."""
    if not task.software.flash_attention:
        return _all(Origin.DATASHEET)
    backward = task.cluster.accelerator.attention.backward_ratio
    forward = _of(task, "kernels.attention.efficiency")
    both = forward + backward * _of(task, "kernels.attention.backward_ratio")
    out: Value = both / (1 + backward)
    return out
