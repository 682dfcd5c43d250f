"""Differences of two plans of one task, term by term, in seconds and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.units import GIB, format_bytes, format_seconds
from ..plan.fields import AXES, TABLE_FIELDS, spell
from ..plan.plan import Plan
from ..step.costs import Costs
from ..uncertainty.memory import fit_sentence
from .time_breakdown import LABELS, losses

LEAST_TIME_SHARE = 0.002
"""Share of the step above which a term's difference is told."""
LEAST_BYTES = 0.05 * GIB
MOST_TERMS = 4
"""Terms told in each direction, the largest first."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One term of both plans; seconds or bytes."""

    name: str
    label: str
    first_value: float
    second_value: float

    @property
    def change(self) -> float:
        """Second less first: above zero, the second spends more."""
        return self.second_value - self.first_value


def time_differences(first: Costs, second: Costs) -> list[Difference]:
    """Every loss of two plans in seconds; their changes add up to that of the step."""
    ours, theirs = losses(first), losses(second)
    return [Difference(name, LABELS[name], ours[name], theirs[name]) for name in LABELS]


def memory_differences(first: Costs, second: Costs) -> list[Difference]:
    """Every part of the fullest rank's memory in bytes; they add up to that of its total."""
    ours, theirs = first.row().memory, second.row().memory
    return [Difference(name, name, ours[name], theirs[name]) for name in ours]


def changed_fields(first: Plan, second: Plan) -> dict[str, tuple[object, object]]:
    """Fields in which two resolved plans differ, as people write them."""
    ours, theirs = first.take(0), second.take(0)
    out: dict[str, tuple[object, object]] = {
        name: (spell(name, getattr(ours, name)), spell(name, getattr(theirs, name)))
        for name in AXES
        if getattr(ours, name) != getattr(theirs, name)
    }
    for name in TABLE_FIELDS:
        before, after = (_written_value(plan, name) for plan in (ours, theirs))
        if before != after:
            out[name] = (before, after)
    return out


def _written_value(plan: Plan, name: str) -> str:
    """What a plan written out gives for a field; 'none' where it gives nothing."""
    words = (word.partition("=") for word in str(plan).split())
    return next((value for field, _, value in words if field == name), "none")


def contrast_sentences(first: Costs, second: Costs) -> list[str]:
    """How two plans differ: the step, the terms behind it, the memory."""
    a, b = first.row(), second.row()
    slower = b.step_seconds / a.step_seconds - 1
    verb = "slower" if slower >= 0 else "faster"
    changed = changed_fields(a.plans, b.plans)
    told = [f"{name} {_cell(now)} (was {_cell(was)})" for name, (was, now) in changed.items()]
    if not told:
        return ["It is the same plan."]
    return [
        f"It takes {b.step_seconds:.4g} s a step, {abs(100 * slower):.1f} % {verb} than "
        f"{a.step_seconds:.4g} s; it changes {', '.join(told)}.",
        *_time_sentences(time_differences(a, b), a.step_seconds),
        _memory_sentence(a, b),
    ]


def _cell(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def _time_sentences(terms: list[Difference], step: float) -> list[str]:
    out = []
    for sign, verb in ((1, "It spends more on"), (-1, "It spends less on")):
        told = [t for t in terms if sign * t.change > LEAST_TIME_SHARE * step]
        told.sort(key=lambda t: -abs(t.change))
        if told:
            parts = [
                f"{t.label} {'+' if sign > 0 else '-'}{format_seconds(abs(t.change))}"
                for t in told[:MOST_TERMS]
            ]
            out.append(f"{verb} {', '.join(parts)}.")
    return out


def _memory_sentence(a: Costs, b: Costs) -> str:
    terms = [t for t in memory_differences(a, b) if abs(t.change) > LEAST_BYTES]
    terms.sort(key=lambda t: -abs(t.change))
    parts = [f"{t.label} {t.change / GIB:+.1f} GiB" for t in terms[:MOST_TERMS]]
    told = f" ({', '.join(parts)})" if parts else ""
    over = f", {format_bytes(-b.margin)} too much" if b.margin < 0 else ""
    return (
        f"Its fullest rank needs {format_bytes(b.memory_bytes)} instead of "
        f"{format_bytes(a.memory_bytes)}{told}: it {fit_sentence(b)}{over}."
    )
