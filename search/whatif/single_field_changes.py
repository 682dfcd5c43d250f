"""Single changes of a plan: every legal edit of one field, costed and ranked.

An edit keeps the plan's other fields and lets follow what follows: dp fills the GPUs, a field that
has the value a stack would choose anyway is chosen again, and a switch that the task's framework
wants otherwise is turned. What changes the numbers that are trained (precision, optimizer) is not
offered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Mask
from plan3d.simulator.base.units import format_bytes
from plan3d.simulator.plan.field_values import AUTO, Flag
from plan3d.simulator.plan.fields import (
    AXES,
    CATEGORICAL,
    CHOICES,
    ON_HOST,
    RECIPE_FIELDS,
    check_field,
    columns_where,
    spell,
)
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.plan.tensor_grid import every_grid
from plan3d.simulator.reporting.why import layers_per_rank
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import (
    EDGE_PROBABILITY,
    VERDICTS,
    fit_sentence,
    probability_fits,
    verdict,
)

from ..rank_plans import Ranking, rank_plans
from ..space.axes import default_axes, divisors
from .launchable_changes import changed, keeps_launched, resolved

FOLLOWING = columns_where(
    lambda field: field.default == AUTO and not field.opt_in and field.name != "dp"
)
"""Fields that resolve() chooses where a plan leaves them open, besides dp."""
FIXED = ("dp", *RECIPE_FIELDS)
"""Fields that are no edit: dp follows from the GPUs, the others change what is trained."""
WORTH = 0.01
"""Share of a step below which a change is not worth making, or naming."""
EFFECTLESS = 1e-9
"""Relative change of step and memory below which an edit is none."""
CHOICE_FIELDS = tuple(name for name in CATEGORICAL if name not in RECIPE_FIELDS)
"""Fields that are tried with all their names."""
SWITCHED = columns_where(
    lambda field: isinstance(field.values, Flag) and field.name not in RECIPE_FIELDS
)
"""Fields that are tried both ways, also where a search lets them follow from others."""
ON_HOST_VALUES = (0, 50, 100)
"""Percent that is tried of them."""
NEAR_LAYERS = 2
"""Layers by which the first or last stage is made shorter or longer."""
CAPACITIES = (0.8, 1.0, 1.25)
"""Factors of the memory at which the best plan is looked for."""


@dataclass(frozen=True)
class Edits:
    """Legal single edits of a plan and their costs, fastest first."""

    fields: tuple[str, ...]
    values: tuple[int, ...]
    """The new value of the field, as a code."""
    costs: Costs | None
    """One row an edit; None when there is no legal edit."""

    def __len__(self) -> int:
        return len(self.fields)

    def text(self, row: int) -> str:
        """'tp=4'."""
        value = spell(self.fields[row], self.values[row])
        return f"{self.fields[row]}={int(value) if isinstance(value, bool) else value}"


def loose(plan: Plan, gpus: int) -> Plan:
    """A resolved plan with every field open that resolve() would choose the same, dp too."""
    row = plan.take(0)
    stated = Plan.parse(str(row))
    open_fields: dict[str, Any] = {"dp": AUTO}
    again = resolved(replace(row, segments=None), [{name: AUTO} for name in FOLLOWING], gpus)
    for i, name in enumerate(FOLLOWING):
        kept = getattr(row, name)
        open_fields[name] = AUTO if getattr(again, name)[i] == kept else kept
    return replace(stated, **open_fields)


def edited(plan: Plan, task: Task, changes: Mapping[str, Any]) -> Plan:
    """A plan with some fields changed and the rest derived again; legal or not.

    Raises InputError for an unknown field or a value that no plan has.
    """
    for name in changes:
        check_field(name)
    start = loose(resolve(plan, task.gpus), task.gpus)
    return changed(start, [changes], task).take(0)


def edit_values(plan: Plan, task: Task) -> dict[str, tuple[int, ...]]:
    """Values by field that an edit may try, legal or not; the plan's own among them."""
    axes = {name: v for name, v in default_axes(task).items() if name not in FIXED}
    layers = layers_per_rank(task, plan.take(0))
    near = range(-NEAR_LAYERS, NEAR_LAYERS + 1)
    axes |= {name: tuple(CHOICES[name].names.values()) for name in CHOICE_FIELDS}
    axes["first_stage_layers"] = (0, *(layers[0] + d for d in near if layers[0] + d > 0))
    axes["last_stage_layers"] = (0, *(layers[-1] + d for d in near if layers[-1] + d > 0))
    axes |= {name: (0, 1) for name in SWITCHED if len(axes[name]) == 1}
    axes |= dict.fromkeys(ON_HOST, ON_HOST_VALUES if task.cluster.host else (0,))
    axes["mtp_stage"] = tuple(range(plan.take(0).pp + 1)) if task.model.mtp_layers else (0,)
    axes["micro_batch_group"] = (0, *divisors(_micro_batches(plan, task)))
    if plan.take(0).tp_grid:
        axes["tp_grid"] = every_grid([plan.take(0).tp])
    if any(kind.experts for kind in task.model.kinds):
        axes["etp"] = tuple(d for d in divisors(task.gpus) if d <= task.cluster.fast_domain.gpus)
    return {name: tuple(dict.fromkeys(int(v) for v in values)) for name, values in axes.items()}


def _micro_batches(plan: Plan, task: Task) -> int:
    row = plan.take(0)
    return int(max(task.global_batch // (row.dp * row.micro_batch), 1))


def _candidates(
    costs: Costs, names: Collection[str] | None
) -> tuple[list[tuple[str, int]], Plan | None]:
    """Changes of one field, and the plans that they make."""
    task, row = costs.task, costs.plans.take(0)
    tried = [
        (name, value)
        for name, values in edit_values(row, task).items()
        if names is None or name in names
        for value in values
        if value != getattr(row, name)
    ]
    if not tried:
        return [], None
    return tried, changed(loose(row, task.gpus), [{name: v} for name, v in tried], task)


def _is_another(plans: Plan, plan: Plan) -> Mask:
    """Which plans of a table are neither this one nor one before them [row]."""
    every = concat([plan, plans])
    runs = [one.segments_text for one in every] if every.segments else [""] * every.rows
    keys = list(zip(*(getattr(every, name).tolist() for name in AXES), runs, strict=True))
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    return np.array([first[key] == row for row, key in enumerate(keys)])[1:]


def single_edits(costs: Costs, names: Collection[str] | None = None) -> Edits:
    """Every legal change of one field of one plan that has an effect, fastest first; with `names`
    only of these fields. Changes keep to what the framework of the task launches, where it launches
    the plan itself."""
    task = costs.task
    tried, plans = _candidates(costs, names)
    if plans is None:
        return Edits((), (), None)
    legal = legal_rows(plans, task) & keeps_launched(plans, costs.plans, task)
    may = np.flatnonzero(_is_another(plans, costs.plans.take(0)) & legal)
    if not may.size:
        return Edits((), (), None)
    found, made = [tried[i] for i in may], simulate(task, plans.take(may))
    kept = [i for i in np.argsort(made.step, kind="stable") if _differs(made, i, costs)]
    if not kept:
        return Edits((), (), None)
    fields, values = zip(*(found[i] for i in kept), strict=True)
    return Edits(fields, values, made.take(np.array(kept)))


def _differs(tried: Costs, row: int, costs: Costs) -> bool:
    """Whether an edit changes the time or the memory at all."""
    step, memory = tried.step[row] / costs.step[0], tried.memory_total[row] / costs.memory_total[0]
    return bool(max(abs(step - 1), abs(memory - 1)) > EFFECTLESS)


def fitting(edits: Edits) -> NDArray[np.intp]:
    """Rows of the edits that more likely fit than not, in order."""
    if edits.costs is None:
        return np.zeros(0, np.intp)
    likely = np.atleast_1d(probability_fits(edits.costs)) >= EDGE_PROBABILITY
    return np.flatnonzero(edits.costs.fits & likely)


def too_large(edits: Edits, step: float) -> NDArray[np.intp]:
    """Rows that are faster than `step` seconds and do not fit, in order."""
    if edits.costs is None:
        return np.zeros(0, np.intp)
    return np.flatnonzero(~edits.costs.fits & (edits.costs.step < step))


def by_capacity(costs: Costs) -> list[tuple[float, Costs | None]]:
    """The best plan, None where there is none, with each of CAPACITIES times a GPU's memory.

    It keeps the precision and optimizer of the given plan.
    """
    task, row = costs.task, costs.plans.take(0)
    choose = {name: [getattr(row, name)] for name in RECIPE_FIELDS}
    out = []
    for factor in CAPACITIES:
        a = task.cluster.accelerator
        cluster = replace(task.cluster, accelerator=replace(a, memory=a.memory * factor))
        found = rank_plans(replace(task, cluster=cluster), Ranking(choose=choose, top=1))
        out.append((factor, found.unless_interrupted().best))
    return out


def beyond_memory(costs: Costs, edits: Edits) -> int | None:
    """The row of the fastest edit where it is too large and beats the plan; else None."""
    if edits.costs is None or edits.costs.fits[0] or edits.costs.step[0] >= costs.step[0]:
        return None
    return 0


def binding_sentence(costs: Costs, edits: Edits) -> str:
    """Whether memory stands between a plan and its fastest edit, with numbers."""
    plan, row = costs.row(), beyond_memory(costs, edits)
    held = f"{format_bytes(plan.memory_bytes)} of {format_bytes(plan.capacity)}"
    if not plan.fits:
        return _misfit_sentence(plan, edits, held)
    if row is None or edits.costs is None:
        return (
            f"Memory does not bind: rank {plan.worst_rank} is fullest with {held}, and the fastest "
            f"single edit {_fits(edits)}."
        )
    gain = 100 * (1 - edits.costs.step[row] / plan.step_seconds)
    return (
        f"Memory binds: {edits.text(row)} would be {gain:.1f} % faster, more than any edit that "
        f"fits, and needs {format_bytes(-edits.costs.margin[row])} more than a GPU has; now rank "
        f"{plan.worst_rank} is fullest with {held}."
    )


def _fits(edits: Edits) -> str:
    """Whether the first edit fits, and how likely where that is not sure."""
    if edits.costs is None or verdict(edits.costs)[0] == VERDICTS[-1]:
        return VERDICTS[-1]
    return fit_sentence(edits.costs.row())


def _misfit_sentence(plan: Costs, edits: Edits, held: str) -> str:
    lead = f"Memory binds: rank {plan.worst_rank} needs {held}; "
    rows = fitting(edits)
    if rows.size:
        assert edits.costs is not None
        first = int(rows[0])
        step = edits.costs.step[first]
        return f"{lead}the fastest single edit that fits is {edits.text(first)}, {step:.4g} s."
    if edits.costs is None:
        return f"{lead}no single edit is legal."
    least = int(np.argmin(edits.costs.memory_total))
    if edits.costs.memory_total[least] >= plan.memory_bytes:
        return f"{lead}no single edit needs less."
    size = format_bytes(edits.costs.memory_total[least])
    return f"{lead}no single edit makes it fit, {edits.text(least)} comes nearest with {size}."
