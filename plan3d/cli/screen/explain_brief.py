"""The first screen of an explanation: what was asked, the reason, and the edits that would help."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, whole_percent

from . import brief
from .output import Screen

if TYPE_CHECKING:
    from plan3d.search.whatif.explanation import Explanation
    from plan3d.simulator.step.costs import Costs

Told = tuple[list[str], list[str]]
"""What a measured step says, and what to check where it disagrees."""
EDITS = 5
"""Edits that are shown, of a step that was measured all ten."""
KNOWN = ("memory", "measured")
"""Facts that a measured step leaves without interest."""
LOSSES = 2
"""Lines about losses beside ten edits."""


def print_answer(
    screen: Screen,
    found: Explanation,
    args: argparse.Namespace,
    measured: Told | None,
) -> None:
    """The difference that was asked about, or where the step goes; then what to change."""
    costs = found.costs
    screen.lines([_sentence(found, args.against, measured)])
    print()
    asked = None if args.file else args
    screen.items([*_facts(costs, asked, measured), *_measured(measured), *_against(found)])
    print()
    edits = found.best_edits if measured is not None else found.best_edits[:EDITS]
    if edits and found.against is None:
        screen.table(edit_table("The best single edits that fit", edits))
    reasons = brief.reasons(costs)
    screen.items(reasons if measured is None else reasons[:LOSSES])
    if measured is None:
        screen.items([("binding", found.binding)])
        screen.items([("machine", found.matters[0])] if found.against is None else [])
    screen.items([("more", brief.MORE)])


def _facts(costs: Costs, args: argparse.Namespace | None, measured: Told | None) -> brief.Items:
    """What every first screen says of a plan; of one that was timed nobody asks whether it fits."""
    facts = brief.facts(costs, args=args)
    return facts if measured is None else [item for item in facts if item[0] not in KNOWN]


def _sentence(found: Explanation, asked: str | None, measured: Told | None) -> str:
    if measured is not None:
        return measured[0][0]
    if found.against is None or found.against.costs is None:
        return brief.sentence(found.costs)
    other, own = found.against.costs.step_seconds, found.costs.step_seconds
    word = "slower" if other > own else "faster"
    change = 100 * abs(other / own - 1)
    fits = "" if found.against.costs.fits else "; it does not fit"
    return f"with {asked} {change:.1f} % {word}: {other:.4g} instead of {own:.4g} s a step{fits}"


def _measured(measured: Told | None) -> brief.Items:
    if measured is None:
        return []
    return [*_listed("learned", measured[0][1:]), *_listed("check", measured[1])]


def _against(found: Explanation) -> brief.Items:
    return _listed("against", list(found.against.sentences)) if found.against else []


def _listed(name: str, lines: list[str]) -> brief.Items:
    return [(name if row == 0 else "", line) for row, line in enumerate(lines)]


def edit_table(title: str, records: list[dict[str, Any]]) -> Table:
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
