"""How are costs shown? Tables, text, HTML for notebooks, and records for JSON and CSV.

Knows nothing of the command line. Memory is in GiB (2^30 bytes) where people read it and in
bytes in records. For a few rows, never the hot path.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import tables
from .explain import assumptions, layers_per_rank, number_format, why
from .groups import COMPUTE
from .host_report import host_record, host_table
from .losses import one
from .plan import ZERO_IS_USUAL
from .plan_values import spell
from .policy import FIELDS, PLAIN
from .provenance import time_provenance
from .step import Costs, by_stage
from .tables import Table
from .units import GIB, format_bytes

__all__ = [
    "assumptions",
    "breakdown",
    "frame",
    "html",
    "number_format",
    "plan_record",
    "ranking",
    "same_for_all",
    "stage_records",
    "stage_table",
    "text",
    "training_record",
    "why",
    "worth_saying",
]

SHORT = {
    "virtual_stages": "virtual",
    "micro_batch": "micro",
    "micro_batches": "batches",
    "sequence_parallel": "sp",
    "overlap_grad_reduce": "o-grad",
    "overlap_param_gather": "o-param",
    "overlap_p2p": "o-p2p",
    "overlap_tp": "o-tp",
    "overlap_ep": "o-ep",
    "expert_dispatch": "dispatch",
    "first_stage_layers": "first",
    "last_stage_layers": "last",
    "offload_optimizer": "off-opt %",
    "offload_activations": "off-act %",
}
"""Column headers of a ranking where the field's name is long."""
ALWAYS = ("tp", "pp", "dp", "micro_batch", "micro_batches", "recompute", "zero")
"""Fields that a ranking shows even if all its rows agree."""
SHOWN, STAGES_SHOWN, WIDEST = 10, 16, 60
"""Rows of a ranking and of a stage table; characters of segments in a ranking."""
NEGLIGIBLE = 1e-6
"""Share of a step below which a breakdown leaves a part out."""


def plan_fields(costs: Costs, row: int) -> dict[str, Any]:
    """One plan as names and plain values, with its number of micro-batches."""
    plan = costs.plans.take(row)
    fields = plan.to_dict()
    batches = costs.task.global_batch // (plan.dp * plan.micro_batch)
    at = list(fields).index("micro_batch") + 1
    items = list(fields.items())
    return dict([*items[:at], ("micro_batches", batches), *items[at:]])


def plan_record(costs: Costs, row: int = 0, limit: float | None = None) -> dict[str, Any]:
    """One plan's costs as JSON holds them: SI units, plain numbers.

    `limit` is the bytes it may use, the capacity when absent.
    """
    costs, fields = one(costs, row), plan_fields(costs, row)
    memory = {name: float(size) for name, size in costs.memory.items()}
    return {
        "plan": fields,
        "step_seconds": costs.step_seconds,
        "step_seconds_interval": list(costs.interval),
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
        "verdict": costs.verdict,
        "tokens_per_second": costs.tokens_per_second,
        **costs.reached,
        "mfu": costs.mfu,
        "hfu": costs.hfu,
        "peak_flops": costs.peak_flops,
        "number_format": number_format(costs.plans),
        "provenance": time_provenance(costs),
        "assumptions": assumptions(costs),
    }


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
    columns, costs = by_stage(costs), one(costs)
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


def frame(costs: Costs | None) -> Any:
    """A pandas DataFrame, one row a plan: fields, seconds by part, bytes by component."""
    import pandas

    if costs is None:
        return pandas.DataFrame()
    columns: dict[str, Any] = {}
    for row in range(len(costs)):
        for name, value in plan_fields(costs, row).items():
            columns.setdefault(name, []).append(value)
    numbers = {
        "step_seconds": costs.step_seconds,
        "mfu": costs.mfu,
        "hfu": costs.hfu,
        "tokens_per_second": costs.tokens_per_second,
        "memory_bytes": costs.memory_bytes,
        "fits": costs.fits,
        **{f"seconds.{name}": column for name, column in costs.seconds.items()},
        **{f"memory_bytes.{name}": column for name, column in costs.memory.items()},
    }
    return pandas.DataFrame({**columns, **numbers}, index=range(1, len(costs) + 1))


def html(costs: Costs) -> str:
    """A small HTML table: the breakdown of one plan, or a ranking of the first of several."""
    return tables.html(breakdown(costs) if len(costs) == 1 else [ranking(costs, SHOWN)])


def text(costs: Costs) -> str:
    """The same as plain text."""
    if len(costs) == 1:
        return "\n\n".join([summary(costs), *map(tables.plain, breakdown(costs))])
    return tables.plain(ranking(costs, SHOWN))


def summary(costs: Costs) -> str:
    """One line: the plan, its step, MFU with the peak, and whether it fits."""
    costs = one(costs)
    verdict = "fits, at the edge" if costs.verdict == "edge" else costs.verdict
    return (
        f"{costs.plans}: {costs.step_seconds:.4g} s a step, MFU {100 * costs.mfu:.1f} % of "
        f"{costs.peak_flops / 1e12:.4g} TFLOP/s ({number_format(costs.plans)}, dense), "
        f"{format_bytes(costs.memory_bytes)} of {format_bytes(costs.capacity)}: {verdict}"
    )


def bounds(costs: Costs) -> tuple[float, float]:
    """Seconds between which the step of one plan lies in about four of five published runs."""
    low, high = one(costs).interval
    return low, high


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def _cells_of(costs: Costs, row: int) -> dict[str, Any]:
    """One plan's fields as a table shows them: its runs of layers as a text, cut where long."""
    fields, plan = plan_fields(costs, row), costs.plans.take(row)
    if plan.segments:
        text = plan.segments_text
        fields["segments"] = text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
    return fields


def same_for_all(costs: Costs) -> dict[str, str]:
    """Fields on which all plans agree and which a ranking need not repeat."""
    rows = [_cells_of(costs, row) for row in range(len(costs))]
    hidden = [n for n in rows[0] if n not in ALWAYS and all(r[n] == rows[0][n] for r in rows)]
    return {name: _cell(rows[0][name]) for name in hidden}


def worth_saying(costs: Costs) -> dict[str, str]:
    """The same without what few plans use and these leave at its default."""
    usual = {**dict.fromkeys(ZERO_IS_USUAL, "0"), "tp_grid": "1d"}
    usual |= {name: _cell(spell(name, code)) for name, code in zip(FIELDS, PLAIN, strict=True)}
    usual["offload_activations"] = "0"
    return {n: v for n, v in same_for_all(costs).items() if usual.get(n) != v}


def ranking(costs: Costs, most: int, extra: dict[str, list[str]] | None = None) -> Table:
    """Plans in order, the first marked; `extra` adds columns of ready text after the numbers."""
    rows = range(min(len(costs), most))
    fields = [_cells_of(costs, row) for row in rows]
    hidden = same_for_all(costs)
    names = [name for name in fields[0] if name not in hidden]
    mfu, tokens = np.atleast_1d(costs.mfu), np.atleast_1d(costs.tokens_per_second)
    more = extra or {}
    cells = [
        (
            str(row + 1),
            f"{costs.step[row]:.4g}",
            f"{100 * mfu[row]:.1f}",
            f"{costs.memory_total[row] / GIB:.1f}",
            f"{tokens[row]:,.0f}",
            *(column[row] for column in more.values()),
            *(_cell(fields[row][name]) for name in names),
        )
        for row in rows
    ]
    head = ("rank", "step s", "MFU %", "mem GiB", "tokens/s", *more)
    words = {len(head) + i for i, name in enumerate(names) if isinstance(fields[0][name], str)}
    headers = (*head, *(SHORT.get(name, name) for name in names))
    return Table(headers=headers, rows=tuple(cells), words=frozenset(words), marked=0)


def breakdown(costs: Costs) -> list[Table]:
    """Where one plan's step and memory go."""
    costs = one(costs)
    host = [host_table(costs)] if costs.uses_host else []
    return [_time_table(costs), _memory_table(costs), *host]


def _time_table(costs: Costs) -> Table:
    step, rows = costs.step_seconds, []
    for name, seconds in costs.seconds.items():
        rows.append((name, seconds))
        if name == "compute":
            rows += [(f"  {part}", costs.compute_seconds[part]) for part in COMPUTE]
    rows = [(name, s) for name, s in rows if s > NEGLIGIBLE * step]
    cells = [(name, f"{s:.4g}", f"{100 * s / step:.1f}") for name, s in (*rows, ("step", step))]
    return Table(headers=("part of a step", "s", "share %"), rows=tuple(cells))


def _memory_table(costs: Costs) -> Table:
    capacity = costs.capacity
    rows = [(name, size) for name, size in costs.memory.items() if size > 0]
    rows += [("total", costs.memory_bytes), ("capacity", capacity), ("margin", costs.margin)]
    cells = [(name, f"{b / GIB:.2f}", f"{100 * b / capacity:.1f}") for name, b in rows]
    header = f"memory of worst rank ({costs.worst_rank})"
    return Table(headers=(header, "GiB", "of GPU %"), rows=tuple(cells))


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
    shown = _few(runs, fullest)
    rows = [(_span(run), *cells[run[0]]) for run in shown]
    return Table(
        title="memory by pipeline rank, GiB",
        headers=("rank", "layers", *names, "ms per micro-batch"),
        rows=tuple(rows),
        marked=next(i for i, run in enumerate(shown) if fullest in run),
    )


def _few(runs: list[list[int]], fullest: int) -> list[list[int]]:
    """At most STAGES_SHOWN runs: the first, the last, and the one with the fullest rank."""
    if len(runs) <= STAGES_SHOWN:
        return runs
    half = STAGES_SHOWN // 2
    middle = [run for run in runs[half : 1 - half] if fullest in run]
    return [*runs[:half], *middle, *runs[1 - half :]]


def _span(run: list[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"
