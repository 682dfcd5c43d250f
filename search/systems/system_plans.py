"""Plans of a system: constraints of a search, and plans completed with what a system holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.field_values import AUTO
from plan3d.simulator.plan.fields import code, spell
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.tensor_grid import every_grid
from plan3d.simulator.task import Task

from ..space.axes import default_axes, divisors
from ..space.space import Choices
from .systems import System, Values, ValueSet, describe_values, is_single


def constraints(system: System, task: Task, choose: Choices) -> dict[str, Sequence[Any]]:
    """The values by field that a search of the system's plans is given, narrowed by `choose`.

    Raises InputError, naming the field, where `choose` contradicts the system.
    """
    for field, values in choose.items():
        for value in values:
            _check(system, field, value)
    axes = default_axes(task)
    if system.spans_domains:
        axes["tp"] = divisors(task.gpus)
    chosen = [code("tp", size) for size in choose.get("tp", axes["tp"])]
    axes["tp_grid"] = every_grid(chosen)
    usual = {
        field: _values_to_search(field, values, axes[field])
        for field, values in system.search_values.items()
    }
    return {**usual, **choose}


def _values_to_search(field: str, values: Values, axis: tuple[int, ...]) -> Sequence[Any]:
    """The values to search: where they are not listed, those of an axis, or else the default."""
    if not isinstance(values, ValueSet):
        return values
    return [value for value in axis if values.contains(spell(field, value))] or [values.default]


def complete_plan(system: System, plan: Plan, stated: frozenset[str]) -> Plan:
    """One plan with what it does not state as the system has it.

    Raises InputError, naming the field, where the plan contradicts the system.
    """
    if plan.segments:
        raise InputError(f"segments contradict the system {system.name}: its stages are all alike")
    fields: dict[str, Any] = {}
    for field, usual in system.search_values.items():
        value = getattr(plan, field)
        if field in stated:
            _check(system, field, spell(field, value))
        elif not _may_keep_default(system, field, value, usual):
            fields[field] = code(field, usual.default if isinstance(usual, ValueSet) else usual[0])
    return replace(plan, **fields)


def _may_keep_default(system: System, field: str, value: int, usual: Values) -> bool:
    """Whether a field that was not stated may keep its default: one that is usual, or derived from
    others among the values that the system holds."""
    derived = value == AUTO and not is_single(usual) and field not in system.usual_settings
    return derived or _is_among(field, value, usual)


def _check(system: System, field: str, value: Any) -> None:
    """InputError where a value of a field is none that the system has."""
    held = system.held_values.get(field)
    if held is None or value in system.usual_settings.get(field, ()):
        return
    if not _is_among(field, code(field, value), held):
        raise InputError(
            f"{field}={value} contradicts the system {system.name}, which has "
            f"{describe_values(field, held)}"
        )


def _is_among(field: str, value: int, values: Values) -> bool:
    """Whether a field's value, as plans hold it, is one of those."""
    if isinstance(values, ValueSet):
        return values.contains(spell(field, value))
    return value in [code(field, one) for one in values]
