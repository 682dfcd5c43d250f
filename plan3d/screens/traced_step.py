"""The screen of a traced step: its parts as predicted and as measured, and where the rest is."""

from __future__ import annotations

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.calibration.traces.comparison import SHORTEST_KERNEL, Row

from ..answers.explain import ExplainAnswer
from ..answers.traced_step import TracedStep
from . import plan_lines
from .output import Screen

LINES, ROWS, HIDDEN, NOTES = 24, (2, 7), 2, 2
"""Lines of the first screen; least and most parts, collectives and notes that it shows."""
FRAME = 6
"""Lines of it around its parts and items: the headline, two empty ones, the heads of columns, the
other parts and the step."""
REST = "other parts"


def print_traced_step(screen: Screen, answer: ExplainAnswer) -> None:
    """Predicted beside measured; then what explains most of the difference, and what to change."""
    traced = answer.traced
    assert traced is not None
    hidden = traced.hidden if screen.details else traced.hidden[:HIDDEN]
    notes = traced.notes
    if not screen.details and len(notes) > NOTES:
        notes = [*notes[: NOTES - 1], f"{len(notes) - NOTES + 1} more with -v"]
    items: plan_lines.Items = [
        ("hidden", "; ".join(hidden)),
        ("gaps", traced.gaps),
        ("ranks", traced.waiting),
        ("memory", traced.memory),
        *(("most" if i == 0 else "", line) for i, line in enumerate(traced.main_cause)),
        *(("note", line) for line in notes),
        ("learned", traced.learned),
        ("after", traced.gains_afterwards(answer.explanation)),
    ]
    items = [item for item in items if item[1]]
    fewest, most = ROWS
    rows = min(max(LINES - FRAME - screen.height(items), fewest), most)
    screen.lines([traced.headline])
    print()
    screen.table(_parts_table(traced, None if screen.details else rows))
    screen.items(items)


def _parts_table(traced: TracedStep, most: int | None) -> Table:
    """Rows of parts, the longest first, and the step."""
    rows = sorted(traced.comparison.rows, key=lambda row: -max(row.predicted, row.measured))
    shown, rest = rows[:most], rows[most:] if most else []
    if rest:
        both = (sum(row.predicted for row in rest), sum(row.measured for row in rest))
        shown = [*shown, Row("rest", *both, bound=False)]
    costs, job = traced.comparison.costs, traced.comparison.job
    cells = [_cells(row, REST if row.name == "rest" else row.title) for row in shown]
    cells.append(_cells(Row("step", costs.step_seconds, job.wall, bound=False), "step"))
    headers = ("part", "predicted ms", "measured ms", "ratio")
    return Table(headers=headers, rows=tuple(cells), highlighted=len(cells) - 1)


def _cells(row: Row, title: str) -> tuple[str, ...]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    bound = "<= " if row.bound and row.measured else ""
    return title, _milliseconds(row.predicted), bound + _milliseconds(row.measured), bound + ratio


def _milliseconds(seconds: float) -> str:
    if abs(seconds) < SHORTEST_KERNEL:
        return "0"
    return f"{1e3 * seconds:,.4g}" if seconds < 10 else f"{1e3 * seconds:,.0f}"
