"""Costs as tables, text, HTML for notebooks, and records for JSON and CSV.

Knows nothing of the command line. Memory is in GiB (2^30 bytes) where people read it and in
bytes in records. For a few rows, never the hot path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.text_tables import Table
from ..base.units import GIB
from ..step import costs_tables
from ..step.costs import Costs
from ..step.costs_tables import number_format, with_micro_batches
from ..step.evaluate import by_stage
from ..uncertainty.forecast import step_interval
from ..uncertainty.memory import fit_sentence, probability_fits, verdict_of
from .assumptions import assumptions
from .why import layers_per_rank

NUMBERS = (
    *("step_seconds", "memory_bytes", "worst_rank", "fits", "tokens_per_second"),
    *("mfu", "mfu_causal", "hfu", "peak_flops"),
)
"""Columns of costs that a record has."""
STAGES_SHOWN = 16
"""Rows of a stage table."""


def plan_record(costs: Costs, row: int = 0, limit: float | None = None) -> dict[str, Any]:
    """One plan's costs as `plan_records` has them."""
    (record,) = plan_records(costs.take([row]), limit)
    return record


def plan_records(
    costs: Costs, limit: float | None = None, between: Sequence[list[float]] | None = None
) -> list[dict[str, Any]]:
    """The costs of every plan as JSON holds them: SI units, plain numbers.

    `limit` is the bytes it may use, the capacity when absent; `between` the bounds of each step
    where they are known already.
    """
    from ..analysis.provenance import time_provenance

    costs = costs.take(slice(None))
    if between is None:
        between = np.stack(step_interval(costs), axis=1).tolist()
    seconds, compute, memory, goal = (
        _by_row(columns, len(costs))
        for columns in (costs.seconds, costs.compute_seconds, costs.memory, costs.goal_costs)
    )
    numbers = _by_row({name: getattr(costs, name) for name in NUMBERS}, len(costs))
    likely = np.atleast_1d(probability_fits(costs)).tolist()
    out = []
    for row, number in enumerate(numbers):
        one = costs.row(row)
        origins = time_provenance(one)
        record = {
            "plan": with_micro_batches(one.plans.to_record(), costs.task.global_batch),
            "step_seconds": number["step_seconds"],
            "step_seconds_interval": between[row],
            "seconds": seconds[row],
            "compute_seconds": compute[row],
            "memory_bytes": {
                **memory[row],
                "total": number["memory_bytes"],
                "capacity": costs.capacity,
                "limit": costs.capacity if limit is None else float(limit),
                "worst_rank": number["worst_rank"],
            },
            **host_record(one),
            "fits": number["fits"],
            "probability_fits": likely[row],
            "verdict": str(verdict_of(likely[row])),
            "tokens_per_second": number["tokens_per_second"],
            **goal[row],
            **{name: number[name] for name in ("mfu", "mfu_causal", "hfu", "peak_flops")},
            "number_format": number_format(one.plans),
            "provenance": origins,
            "assumptions": assumptions(one, shares=origins),
        }
        out.append(record)
    return out


def _by_row(columns: Mapping[str, Any], rows: int) -> list[dict[str, Any]]:
    """Columns as a record of plain numbers a row."""
    lists = [column.tolist() for column in columns.values()]
    return [{n: each[row] for n, each in zip(columns, lists, strict=True)} for row in range(rows)]


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
