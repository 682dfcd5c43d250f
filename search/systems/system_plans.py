"""Plans of a system: constraints of a search, and a plan with what its system holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.tensor_grid import every_grid
from plan3d.simulator.plan.values import AUTO, code, spell
from plan3d.simulator.task import Task

from ..space.axes import default_axes, divisors
from .systems import System, Those, Values, is_single, shown


def constraints(
    system: System, task: Task, choose: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    """The values by field that a search of the system's plans is given, narrowed by `choose`.

    Raises InputError, naming the field, where `choose` contradicts the system.
    """
    for field, values in choose.items():
        for value in values:
            _check(system, field, value)
    axes = default_axes(task)
    if system.wide:
        axes["tp"] = divisors(task.gpus)
    chosen = [code("tp", size) for size in choose.get("tp", axes["tp"])]
    axes["tp_grid"] = every_grid(chosen)
    usual = {field: _tried(field, values, axes[field]) for field, values in system.usual.items()}
    return {**usual, **choose}


def _tried(field: str, values: Values, axis: tuple[int, ...]) -> Sequence[Any]:
    """The values to search: where they are not listed, those of an axis, or else the least."""
    if not isinstance(values, Those):
        return values
    return [value for value in axis if values.has(spell(field, value))] or [values.least]


def completed(system: System, plan: Plan, stated: frozenset[str]) -> Plan:
    """One plan with what it does not state as the system has it.

    Raises InputError, naming the field, where the plan contradicts the system.
    """
    if plan.segments:
        raise InputError(f"segments contradict the system {system.name}: its stages are all alike")
    fields: dict[str, Any] = {}
    for field, usual in system.usual.items():
        value = getattr(plan, field)
        if field in stated:
            _check(system, field, spell(field, value))
        elif not _stands(field, value, usual):
            fields[field] = code(field, usual.least if isinstance(usual, Those) else usual[0])
    return replace(plan, **fields)


def _stands(field: str, value: int, usual: Values) -> bool:
    """Whether a field that was not stated may keep its default: one that is usual, or derived."""
    return (value == AUTO and not is_single(usual)) or _among(field, value, usual)


def _check(system: System, field: str, value: Any) -> None:
    """InputError where a value of a field is none that the system has."""
    held = system.holds.get(field)
    if held is None or value in system.tries.get(field, ()):
        return
    if not _among(field, code(field, value), held):
        raise InputError(
            f"{field}={value} contradicts the system {system.name}, which has {shown(field, held)}"
        )


def _among(field: str, value: int, values: Values) -> bool:
    """Whether a field's value, as plans hold it, is one of those."""
    if isinstance(values, Those):
        return values.has(spell(field, value))
    return value in [code(field, one) for one in values]
