"""Costs as tables, text, HTML for notebooks, and records for JSON and CSV.

Knows nothing of the command line. Memory is in GiB (2^30 bytes) where people read it and in
bytes in records. For a few rows, never the hot path.
"""

from __future__ import annotations

from typing import Any

from ..analysis.provenance import time_provenance
from ..base.text_tables import Table
from ..base.units import GIB
from ..step import costs_tables
from ..step.costs import Costs
from ..step.costs_tables import number_format, with_micro_batches
from ..step.evaluate import by_stage
from ..uncertainty.forecast import step_interval
from ..uncertainty.memory import fit_sentence, probability_fits, verdict
from .why import assumptions, layers_per_rank

STAGES_SHOWN = 16
"""Rows of a stage table."""


def plan_record(
    costs: Costs, row: int = 0, limit: float | None = None, between: list[float] | None = None
) -> dict[str, Any]:
    """One plan's costs as JSON holds them: SI units, plain numbers.

    `limit` is the bytes it may use, the capacity when absent; `between` the bounds of its step
    where they are known already.
    """
    costs = costs.row(row)
    fields = with_micro_batches(costs.plans.to_record(), costs.task.global_batch)
    memory = {name: float(size) for name, size in costs.memory.items()}
    origins = time_provenance(costs)
    return {
        "plan": fields,
        "step_seconds": costs.step_seconds,
        "step_seconds_interval": list(step_bounds(costs)) if between is None else between,
        "seconds": costs.seconds,
        "compute_seconds": costs.compute_seconds,
        "memory_bytes": {
            **memory,
            "total": costs.memory_bytes,
            "capacity": costs.capacity,
            "limit": costs.capacity if limit is None else float(limit),
            "worst_rank": costs.worst_rank,
        },
        **host_record(costs),
        "fits": bool(costs.fits),
        "probability_fits": probability_fits(costs),
        "verdict": verdict(costs),
        "tokens_per_second": costs.tokens_per_second,
        **costs.goal_costs,
        "mfu": costs.mfu,
        "mfu_causal": costs.mfu_causal,
        "hfu": costs.hfu,
        "peak_flops": costs.peak_flops,
        "number_format": number_format(costs.plans),
        "provenance": origins,
        "assumptions": assumptions(costs, shares=origins),
    }


def host_record(costs: Costs) -> dict[str, dict[str, float]]:
    """Bytes of host memory, and of drives, of the fullest node; nothing where none is used."""
    if not costs.uses_host:
        return {}
    out = {"host_memory_bytes": {"total": costs.node_bytes, "capacity": costs.node_capacity}}
    if costs.swaps:
        out["nvme_bytes"] = {"total": costs.nvme_bytes, "capacity": costs.nvme_capacity}
    return out


def host_needs(costs: Costs) -> str:
    """What the fullest node needs of its memory, or of its drives where they are scarcer."""
    drives = costs.swaps and costs.nvme_bytes / costs.nvme_capacity > (
        costs.node_bytes / costs.node_capacity
    )
    used, there = costs.node_bytes, costs.node_capacity
    if drives:
        used, there = costs.nvme_bytes, costs.nvme_capacity
    return f"{used / GIB:,.1f} of its {there / GIB:,.1f} GiB{' of NVMe' * bool(drives)}"


def training_record(
    costs: Costs, row: int, tokens: float, price: float | None = None
) -> dict[str, float]:
    """What training on `tokens` takes: seconds, GPU-hours, joules and cost at a price a GPU-hour.

    Energy is board power times time, an upper estimate: it leaves out hosts and cooling.
    """
    seconds = tokens / float(costs.task.tokens) * float(costs.step[row])
    gpu_seconds = seconds * costs.task.gpus
    out = {
        "train_seconds": seconds,
        "gpu_hours": gpu_seconds / 3600,
        "energy_joules": gpu_seconds * costs.task.cluster.accelerator.power,
    }
    return out if price is None else {**out, "cost_usd": out["gpu_hours"] * price}


def stage_records(costs: Costs) -> list[dict[str, Any]]:
    """One plan's pipeline ranks: layers, bytes by component, seconds of one micro-batch."""
    columns, costs = by_stage(costs), costs.row()
    seconds = columns.pop("seconds")
    return [
        {
            "rank": rank,
            "layers": layers,
            "memory_bytes": {name: float(column[rank]) for name, column in columns.items()},
            "micro_batch_seconds": float(seconds[rank]),
        }
        for rank, layers in enumerate(layers_per_rank(costs.task, costs.plans.take(0)))
    ]


def step_bounds(costs: Costs) -> tuple[float, float]:
    """Seconds between which the step of one plan lies in about four of five such runs."""
    low, high = step_interval(costs.row())
    return float(low[0]), float(high[0])


def summary(costs: Costs) -> str:
    """One line: the plan, its step, MFU with the peak, its memory, and how likely it fits."""
    return costs_tables.summary(costs, fit_sentence(costs))


def stage_table(costs: Costs) -> Table:
    """One plan's pipeline ranks, equal neighbours in one row; the fullest rank is marked."""
    stages = stage_records(costs)
    names = [n for n in stages[0]["memory_bytes"] if any(s["memory_bytes"][n] for s in stages)]
    cells = [
        (
            str(stage["layers"]),
            *(f"{stage['memory_bytes'][name] / GIB:.2f}" for name in names),
            f"{1e3 * stage['micro_batch_seconds']:.4g}",
        )
        for stage in stages
    ]
    runs: list[list[int]] = []
    for rank, row in enumerate(cells):
        if runs and cells[runs[-1][0]] == row:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    fullest = max(range(len(stages)), key=lambda r: stages[r]["memory_bytes"]["total"])
    shown = _shown_runs(runs, fullest)
    rows = [(_rank_range(run), *cells[run[0]]) for run in shown]
    return Table(
        title="memory by pipeline rank, GiB",
        headers=("rank", "layers", *names, "ms per micro-batch"),
        rows=tuple(rows),
        highlighted=next(i for i, run in enumerate(shown) if fullest in run),
    )


def _shown_runs(runs: list[list[int]], fullest: int) -> list[list[int]]:
    """At most STAGES_SHOWN runs: the first, the last, and the one with the fullest rank."""
    if len(runs) <= STAGES_SHOWN:
        return runs
    half = STAGES_SHOWN // 2
    middle = [run for run in runs[half : 1 - half] if fullest in run]
    return [*runs[:half], *middle, *runs[1 - half :]]


def _rank_range(run: list[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
