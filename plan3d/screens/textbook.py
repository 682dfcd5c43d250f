"""The screen of `textbook`: formulas of the lectures beside the simulator, by topic."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from plan3d.simulator.analysis.textbook import FormulaRow
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import BYTE_UNITS, format_bytes, format_count, format_seconds

from ..answers.textbook import TextbookAnswer
from . import views
from .output import Screen

HEADERS = ("what", "formula", "textbook", "simulator")
DIFFERS = 0.02
"""Relative difference from which a first screen says why."""
NOT_ASKED = "-"


def textbook_record(answer: TextbookAnswer) -> dict[str, Any]:
    """The JSON object."""
    question = {**views.question_record(answer.task), "tokens": answer.tokens}
    rows = [asdict(row) for row in answer.rows]
    return {**question, "plan": answer.plan.to_record(), "fits": answer.fits, "rows": rows}


def print_textbook(screen: Screen, answer: TextbookAnswer, unit: str) -> None:
    """A table of each topic, and why numbers differ."""
    task = answer.task
    plan = "the simulator's best plan is" if answer.searched else "the plan is"
    if answer.searched and not answer.fits:
        plan = "nothing fits; the fastest plan on GPUs with enough memory is"
    screen.lines(
        [
            f"{task.model.name} on {task.gpus:,} {task.cluster.accelerator.name}, "
            f"{task.global_batch:,} sequence{'s' * (task.global_batch > 1)} of "
            f"{task.sequence:,} tokens, "
            f"{format_count(answer.tokens)} tokens in all; {plan} {answer.plan}"
        ]
    )
    print()
    for topic in dict.fromkeys(row.topic for row in answer.rows):
        rows = [row for row in answer.rows if row.topic == topic]
        cells = tuple((r.name, r.formula, *_values(r, unit)) for r in rows)
        headers = (topic, *HEADERS[1:])
        screen.table(Table(headers=headers, rows=cells, words=frozenset({0, 1})))
    shown = [row for row in answer.rows if screen.details or _differs(row)]
    reasons: dict[str, list[str]] = {}
    for row in shown:
        reasons.setdefault(row.why, []).append(row.name.strip())
    screen.section("Why they differ", [f"{'; '.join(n)}: {why}" for why, n in reasons.items()])


def _differs(row: FormulaRow) -> bool:
    if row.simulator is None:
        return True
    return abs(row.simulator - row.textbook) > DIFFERS * abs(row.textbook)


def _values(row: FormulaRow, unit: str) -> tuple[str, str]:
    """Both values of a row with their unit."""

    def written(value: float | None) -> str:
        if value is None:
            return NOT_ASKED
        if row.unit == "bytes":
            amount = value / BYTE_UNITS[unit]
            return format_bytes(value, unit) if amount >= 1 else f"{amount:.3g} {unit}"
        if row.unit == "seconds":
            return format_seconds(value)
        if row.unit == "1":
            return f"{100 * value:.1f} %"
        return f"{value:,.4g}" if abs(value) < 1e4 else format_count(value)

    return written(row.textbook), written(row.simulator)
