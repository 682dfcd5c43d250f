"""Provenance of numbers as a catalogue shows it: columns, notes and JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plan3d.simulator.base.units import convert
from plan3d.simulator.hardware.leaves import Quantity
from plan3d.simulator.hardware.provenance import KINDS, Provenance

HEADERS = ("kind", "source", "learned from")
"""Headers of columns()."""


def columns(origin: Provenance) -> tuple[str, str, str]:
    """Kind, source and the published origins of a number."""
    return origin.kind, origin.id, ", ".join(origin.origins)


def notes(origins: Iterable[Provenance]) -> list[str]:
    """The citations of some numbers, and what their kinds mean."""
    origins = list(origins)
    cited = dict.fromkeys(f"[{origin.id}] {origin.citation}" for origin in origins)
    kinds = {origin.kind for origin in origins}
    return [*(f"{kind}: {text}" for kind, text in KINDS.items() if kind in kinds), *cited]


def counts(origins: Iterable[Provenance]) -> dict[str, int]:
    """How many numbers there are of each kind."""
    kinds = [origin.kind for origin in origins]
    return {kind: kinds.count(kind) for kind in KINDS if kind in kinds}


def learned_from(numbers: Iterable[Provenance]) -> list[str]:
    """Every published origin that one of some numbers was learned from."""
    return sorted({name for number in numbers for name in number.origins})


def record(origin: Provenance) -> dict[str, Any]:
    """Where a number comes from, as JSON."""
    return {
        "measured": origin.measured,
        "kind": origin.kind,
        "source": origin.source,
        "origins": list(origin.origins),
    }


def in_unit(value: float, quantity: Quantity) -> tuple[str, str]:
    """A number in the unit that its field suggests, and the unit."""
    number = f"{value / convert(1.0, quantity.example, quantity.dimension):.6g}"
    return number, "" if quantity.example == "1" else quantity.example
