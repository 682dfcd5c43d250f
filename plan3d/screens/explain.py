"""The screens of an explanation: the reason, what binds the plan, the edits that would help."""

from __future__ import annotations

from typing import Any

from plan3d.search.whatif.explanation import Explanation
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, whole_percent
from plan3d.simulator.reporting import report
from plan3d.simulator.reporting.assumptions import assumptions
from plan3d.simulator.runs.same_runs import sentence

from ..answers.explain import ExplainAnswer
from . import plan_lines, traced_step, views
from .output import Screen

EDITS = 5
"""Edits that are shown, of a step that was measured all ten."""
UNASKED = ("memory", "measured")
"""Facts that a measured step leaves without interest."""
LOSSES = 2
"""Lines about losses beside ten edits."""


def print_explanation(screen: Screen, answer: ExplainAnswer, asked: str | None) -> None:
    """Why a plan is as fast as it is; `asked` is the other plan of --against as it was written."""
    if answer.traced is not None:
        traced_step.print_traced_step(screen, answer)
    elif screen.details:
        _print_details(screen, answer, asked)
    else:
        _print_first(screen, answer, asked)


def _print_first(screen: Screen, answer: ExplainAnswer, asked: str | None) -> None:
    """The difference that was asked about, or where the step goes; then what to change."""
    explanation, measured, costs = answer.explanation, answer.measured, answer.plan.costs
    screen.lines([_headline(answer, asked)])
    print()
    items = plan_lines.facts(answer.plan)
    if measured is not None:
        items = [item for item in items if item[0] not in UNASKED]
        items += [*_listed("learned", measured.lines[1:]), *_listed("check", measured.checks)]
    against = explanation.against
    screen.items([*items, *(_listed("against", list(against.sentences)) if against else [])])
    print()
    edits = explanation.best_edits[: None if measured is not None else EDITS]
    if edits and against is None:
        screen.table(_edit_table("The best single edits that fit", edits))
    reasons = plan_lines.reasons(costs)
    screen.items(reasons if measured is None else reasons[:LOSSES])
    if measured is None:
        screen.items([("limit", explanation.binding)])
        screen.items([("machine", explanation.matters[0])] if against is None else [])
    screen.items([("more", plan_lines.MORE_LINE)])


def _headline(answer: ExplainAnswer, asked: str | None) -> str:
    if answer.measured is not None:
        return answer.measured.lines[0]
    against = answer.explanation.against
    if against is None or against.costs is None:
        return plan_lines.headline(answer.plan)
    other, step = against.costs.step_seconds, answer.plan.costs.step_seconds
    change = f"{100 * abs(other / step - 1):.1f} % {'slower' if other > step else 'faster'}"
    fits = "" if against.costs.fits else "; it does not fit"
    return f"with {asked} {change}: {other:.4g} instead of {step:.4g} s a step{fits}"


def _listed(name: str, lines: list[str]) -> plan_lines.Items:
    return [(name if row == 0 else "", line) for row, line in enumerate(lines)]


def _edit_table(title: str, records: list[dict[str, Any]]) -> Table:
    """Edits of a plan: what each changes in time and memory, and whether it fits."""
    rows = tuple(
        (
            r["edit"],
            f"{r['step_seconds']:.4g}",
            f"{100 * r['step_change']:+.1f}",
            f"{r['memory_bytes'] / GIB:.1f}",
            f"{r['memory_change_bytes'] / GIB:+.1f}",
            whole_percent(r["probability_fits"]),
            r["verdict"],
        )
        for r in records
    )
    headers = ("edit", "step s", "change %", "mem GiB", "change GiB", "fits %", "verdict")
    return Table(title=title, headers=headers, rows=rows, words=frozenset({0, 6}))


def _print_details(screen: Screen, answer: ExplainAnswer, asked: str | None) -> None:
    explanation, measured, costs = answer.explanation, answer.measured, answer.plan.costs
    nearest = answer.plan.nearest_run
    screen.lines([*views.header(costs.task), views.peak_line(costs)])
    print()
    screen.lines([f"Plan: {report.summary(costs)}", *([str(nearest)] if nearest else [])])
    screen.lines([sentence(answer.plan.same_runs)] if answer.plan.same_runs else [])
    print()
    if measured is not None:
        screen.section("The measured step", measured.lines)
        screen.section("To check, where the two disagree", measured.checks)
    if explanation.against is not None:
        screen.section(f"Why not {asked}?", list(explanation.against.sentences))
    screen.table(_waterfall_table(explanation))
    screen.table(report.stage_table(costs))
    screen.lines([explanation.binding])
    print()
    if explanation.best_edits:
        screen.table(_edit_table("The best single edits that fit", explanation.best_edits))
    if explanation.larger_edits:
        screen.table(_edit_table("Faster, but out of memory", explanation.larger_edits))
    screen.table(_sensitivity_table(explanation))
    screen.table(_capacity_table(explanation))
    screen.section("What matters", explanation.matters)
    screen.section("Assumptions", assumptions(costs))


def _waterfall_table(explanation: Explanation) -> Table:
    costs = explanation.costs
    rows = [
        (
            loss.label,
            f"{loss.seconds:.4g}",
            f"{loss.mfu_points:.1f}",
            "" if loss.mfu_if_free is None else f"{100 * loss.mfu_if_free:.1f}",
        )
        for loss in explanation.waterfall
        if abs(loss.mfu_points) >= 0.05
    ]
    step = ("predicted step", f"{costs.step_seconds:.4g}", "100.0", f"{100 * costs.mfu:.1f}")
    headers = ("from ideal to predicted", "s", "MFU points", "MFU % if free")
    return Table(headers=headers, rows=(*rows, step), highlighted=len(rows))


def _sensitivity_table(explanation: Explanation) -> Table:
    step = explanation.costs.step_seconds

    def change(seconds: float) -> str:
        return f"{100 * (seconds / step - 1):+.1f}"

    rows = tuple(
        (s.label, f"{s.elasticity:+.3f}", change(s.step_if_halved), change(s.step_if_doubled))
        for s in explanation.sensitivities
    )
    headers = ("hardware number", "elasticity", "step % if halved", "step % if doubled")
    return Table(headers=headers, rows=rows)


def _capacity_table(explanation: Explanation) -> Table:
    """Whether this plan fits, and which plan is best, with less and more memory."""
    costs, rows = explanation.costs, []
    for factor, best in explanation.capacities:
        memory = factor * costs.capacity
        fits = "fits" if costs.memory_bytes <= memory else "does not fit"
        cells = ("", "none fits") if best is None else (f"{best.step_seconds:.4g}", str(best.plans))
        rows.append((f"{memory / GIB:.1f}", fits, *cells))
    headers = ("memory of a GPU GiB", "this plan", "best step s", "best plan")
    return Table(headers=headers, rows=tuple(rows), words=frozenset({1, 3}))


def explain_record(answer: ExplainAnswer, asked: str | None) -> dict[str, Any]:
    """The JSON object of an explanation; seconds and bytes."""
    out = {**views.estimate_record(answer.plan), **answer.explanation.to_dict()}
    del out["seconds_searching"], out["counts"], out["complete"]
    if asked is not None:
        out["against"] = {"asked": asked, **out["against"]}
    if answer.measured is not None:
        out["measured"] = answer.measured.record
    if answer.traced is not None:
        edits = answer.traced.best_edits(answer.explanation)
        out["trace"] = {**answer.traced.record, "edits": edits}
    return out
