"""Tables of costs: a ranking of plans, the parts of one plan's step and memory, a data frame.

Memory is in GiB (2^30 bytes). For a few rows, never the hot path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import text_tables
from ..base.text_tables import Table, format_table
from ..base.units import GIB, format_bytes
from ..hardware.precision import RECIPES
from ..plan.field_record import Display
from ..plan.fields import FIELDS, RESOLVED_DEFAULTS, columns_where, spell
from ..plan.plan import Plan
from .plan_groups import COMPUTE

if TYPE_CHECKING:
    from .costs import Costs

SHORT_HEADERS = {name: record.header for name, record in FIELDS.items() if record.header}
SHORT_HEADERS |= {"micro_batches": "batches"}
"""Column headers of a ranking where the field's name is long."""
ALWAYS_SHOWN = (*columns_where(lambda record: record.display is Display.ALWAYS), "micro_batches")
"""Fields that a ranking shows even where all its rows agree."""
RARE_FIELDS = columns_where(lambda record: record.display is Display.SELDOM or record.opt_in)
"""Fields that few plans use: a ranking does not say that all plans leave them at their defaults."""
MOST_ROWS, WIDEST_SEGMENTS = 10, 60
"""Rows of a ranking, and characters of segments in it."""
NEGLIGIBLE = 1e-6
"""Share of a step below which a breakdown leaves a part out."""


def number_format(plan: Plan, row: int = 0) -> str:
    """Format of the plan's GEMMs, whose peak is the MFU's denominator: 'bf16'; '16-bit' under
    autocast, which has one recipe for both such formats."""
    recipe = RECIPES[int(plan.table().precision[row])]
    casts = recipe.quantisation and recipe.quantisation.recasts_weights
    return "16-bit" if casts else recipe.linear.name


def plan_fields(costs: Costs, row: int) -> dict[str, Any]:
    """One plan as names and plain values, with its number of micro-batches."""
    plan = costs.plans.take(row)
    return with_micro_batches(plan.to_dict(), costs.task.global_batch)


def with_micro_batches(fields: dict[str, Any], global_batch: int) -> dict[str, Any]:
    """Fields of a plan with its number of micro-batches behind their size."""
    batches = global_batch // (fields["dp"] * fields["micro_batch"])
    at = list(fields).index("micro_batch") + 1
    items = list(fields.items())
    return dict([*items[:at], ("micro_batches", batches), *items[at:]])


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
        "mfu_causal": costs.mfu_causal,
        "hfu": costs.hfu,
        "tokens_per_second": costs.tokens_per_second,
        "memory_bytes": costs.memory_bytes,
        "memory_gib": costs.memory_bytes / GIB,
        "fits": costs.fits,
        **{f"seconds.{name}": column for name, column in costs.seconds.items()},
        **{f"memory_bytes.{name}": column for name, column in costs.memory.items()},
    }
    return pandas.DataFrame({**columns, **numbers}, index=range(1, len(costs) + 1))


def html(costs: Costs) -> str:
    """A small HTML table: the breakdown of one plan, or a ranking of the first of several."""
    return text_tables.tables_html(
        breakdown(costs) if len(costs) == 1 else [ranking(costs, MOST_ROWS)]
    )


def text(costs: Costs) -> str:
    """The same as plain text."""
    if len(costs) == 1:
        return "\n\n".join([summary(costs), *map(format_table, breakdown(costs))])
    return format_table(ranking(costs, MOST_ROWS))


def summary(costs: Costs, fits: str = "") -> str:
    """One line: the plan, its step, MFU with the peak, its memory, and whether it fits."""
    costs = costs.row()
    verdict = fits or ("" if costs.fits else "does not fit")
    return (
        f"{costs.plans}: {costs.step_seconds:.4g} s a step, MFU {100 * costs.mfu:.1f} % "
        f"({100 * costs.mfu_causal:.1f} % causal) of "
        f"{costs.peak_flops / 1e12:.4g} TFLOP/s ({number_format(costs.plans)}, dense), "
        f"{format_bytes(costs.memory_bytes)} of {format_bytes(costs.capacity)}"
        f"{verdict and f': {verdict}'}"
    )


def _cell_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(int(value)) if isinstance(value, bool) else str(value)


def _cells_of(costs: Costs, row: int) -> dict[str, Any]:
    """One plan's fields as cells of a table: its runs of layers as a text, cut where long."""
    fields, plan = plan_fields(costs, row), costs.plans.take(row)
    if plan.segments:
        text = plan.segments_text
        fields["segments"] = (
            text if len(text) <= WIDEST_SEGMENTS else f"{text[: WIDEST_SEGMENTS - 3]}..."
        )
    return fields


def shared_fields(costs: Costs) -> dict[str, str]:
    """Fields on which all plans agree and which a ranking need not repeat."""
    rows = [_cells_of(costs, row) for row in range(len(costs))]
    hidden = [n for n in rows[0] if n not in ALWAYS_SHOWN and all(r[n] == rows[0][n] for r in rows)]
    return {name: _cell_text(rows[0][name]) for name in hidden}


def shared_settings(costs: Costs) -> dict[str, str]:
    """The same without what few plans use and these leave at its default."""
    usual = {name: _cell_text(spell(name, RESOLVED_DEFAULTS[name])) for name in RARE_FIELDS}
    return {n: v for n, v in shared_fields(costs).items() if usual.get(n) != v}


def ranking(costs: Costs, most: int, extra: dict[str, list[str]] | None = None) -> Table:
    """Plans in order, the first marked; `extra` adds columns of ready text after the numbers."""
    rows = range(min(len(costs), most))
    fields = [_cells_of(costs, row) for row in rows]
    # Where plans differ, but not in what follows from others in all of them, as 1F1B does without
    # virtual stages.
    stated = (word for plan in costs.plans for word in str(plan).split())
    shown = {*ALWAYS_SHOWN, *(word.partition("=")[0] for word in stated)} - {*shared_fields(costs)}
    names = [name for name in fields[0] if name in shown]
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
            *(_cell_text(fields[row][name]) for name in names),
        )
        for row in rows
    ]
    head = ("rank", "step s", "MFU %", "mem GiB", "tokens/s", *more)
    words = {len(head) + i for i, name in enumerate(names) if isinstance(fields[0][name], str)}
    headers = (*head, *(SHORT_HEADERS.get(name, name) for name in names))
    return Table(headers=headers, rows=tuple(cells), words=frozenset(words), highlighted=0)


def breakdown(costs: Costs) -> list[Table]:
    """Where one plan's step and memory go."""
    costs = costs.row()
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


def host_table(costs: Costs) -> Table:
    """What the fullest node needs of its memory."""
    capacity = costs.node_capacity
    rows = [("total", costs.node_bytes), ("capacity", capacity)]
    rows += [("margin", capacity - costs.node_bytes)]
    if costs.swaps:
        rows += [("on NVMe drives", costs.nvme_bytes)]
    cells = [(name, f"{b / GIB:.2f}", f"{100 * b / capacity:.1f}") for name, b in rows]
    return Table(headers=("host memory of a node", "GiB", "of node %"), rows=tuple(cells))
