"""Plans as people give them in Python: a plan, its text, or its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.errors import InputError
from .fields import ALIASES
from .plan import Plan
from .values import check_field

Given = Plan | str | Mapping[str, Any]
"""A plan, 'tp=2 pp=4', or {"tp": 2, "pp": 4}."""
FOLLOWING = ("micro_batches",)
"""What records of plans hold besides their fields."""


def as_plan(plan: Given) -> Plan:
    """The plan, that of a text as `Plan.parse` reads it, or that of fields by name."""
    if isinstance(plan, str):
        return Plan.parse(plan)
    if isinstance(plan, Mapping):
        return Plan(**_fields(plan))
    if not isinstance(plan, Plan):
        raise InputError(
            f"a plan must be a Plan, its text or a dict of its fields, not {repr(plan)[:60]}; pass "
            "Plan(tp=2), 'tp=2' or {'tp': 2}"
        )
    return plan


def changes_of(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The field and value of 'tp=4' or {"tp": 4}, or several of them; InputError as Plan has it."""
    stated = as_plan(given)
    if isinstance(given, str):
        names = [word.partition("=")[0].replace("-", "_") for word in given.split()]
    else:
        names = list(_fields(given))
    return {name: getattr(stated, name) for name in (ALIASES.get(n, n) for n in names)}


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by field; a layout that a file holds as a list is one."""
    out: dict[str, Any] = {}
    for key, value in given.items():
        name = ALIASES.get(key, key)
        if name not in FOLLOWING:
            check_field(name)
            out[name] = tuple(value) if name == "layers_per_stage" else value
    return out
