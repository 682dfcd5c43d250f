"""An explanation of a plan as one object: why it takes its time, what binds it, what to change.

What the verb `explain` prints; numbers are seconds, bytes and shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from plan3d.simulator.analysis import plan_difference
from plan3d.simulator.analysis.sensitivity import (
    LEAST_TABLED_SHARE,
    Sensitivity,
    sensitivities,
    tabled_share,
)
from plan3d.simulator.analysis.time_breakdown import Loss, waterfall
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import shorten
from plan3d.simulator.base.text_tables import html_text
from plan3d.simulator.plan.plan import Plan, PlanLike, field_changes, resolve
from plan3d.simulator.reporting.why import why
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.costs_tables import html, summary
from plan3d.simulator.step.evaluate import evaluate, simulate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import probability_fits, verdict, verdict_of

from .single_field_changes import (
    Edits,
    beyond_memory,
    binding_sentence,
    by_capacity,
    edited,
    fitting,
    single_edits,
    too_large,
)

if TYPE_CHECKING:
    from plan3d.simulator.reporting.palette import Picture

MOST_EDITS = 10
"""Edits told."""


@dataclass(frozen=True)
class Contrast:
    """Another plan beside the explained one."""

    plan: Plan
    changed: Mapping[str, tuple[object, object]]
    """Field -> its value in the explained and in the other plan."""
    refused_by: Sequence[tuple[str, str]]
    """Rules that the other plan breaks, with their messages."""
    costs: Costs | None
    """None where a rule refuses it."""
    sentences: Sequence[str]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Everything about one plan, each part computed when it is asked for, once; printed, it is a
    few sentences.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> why = explain(task, "tp=2 recompute=full")
    >>> why.best_edits[0]["step_change"] < 0
    True
    """

    costs: Costs
    against: Contrast | None = None

    @cached_property
    def waterfall(self) -> Sequence[Loss]:
        """From the seconds of ideal arithmetic to the predicted step."""
        return waterfall(self.costs)

    @cached_property
    def edits(self) -> Edits:
        """Every legal single edit with an effect, fastest first, whether it fits or not."""
        return single_edits(self.costs)

    @cached_property
    def sensitivities(self) -> Sequence[Sensitivity]:
        """How the step reacts to each hardware number, the largest elasticity first."""
        return sensitivities(self.costs)

    @cached_property
    def capacities(self) -> Sequence[tuple[float, Costs | None]]:
        """The best plan with less, the same and more memory; None where none fits."""
        return by_capacity(self.costs)

    @property
    def binding(self) -> str:
        """Whether memory stands between the plan and its fastest edit."""
        return binding_sentence(self.costs, self.edits)

    @property
    def best_edits(self) -> list[dict[str, Any]]:
        """The fastest edits that fit: field, plan, seconds, bytes."""
        return self._records(fitting(self.edits)[:MOST_EDITS].tolist())

    @property
    def larger_edits(self) -> list[dict[str, Any]]:
        """Edits that would be faster than the plan and do not fit."""
        return self._records(too_large(self.edits, self.costs.step_seconds)[:MOST_EDITS].tolist())

    @property
    def matters(self) -> list[str]:
        """The hardware number that matters most, and what measured tables hold."""
        share = tabled_share(self.sensitivities)
        first, tables = self.sensitivities[0], share > LEAST_TABLED_SHARE
        among = " (of the numbers that measured tables leave free)" if tables else ""
        gain = f"{first.elasticity:+.2f} % step time"
        out = [f"most sensitive to {first.label}{among}: +1 % gives {gain}"]
        if tables:
            out.append(
                f"Measured tables of this GPU give {100 * share:.0f} % of the step; their times do "
                "not react to a changed GPU, so that the FLOP rate and the memory bandwidth matter "
                "more than the table says."
            )
        return out

    @property
    def sentences(self) -> list[str]:
        """Where the time goes, what binds, what matters, and how the other plan differs."""
        other = self.against.sentences if self.against else []
        return [*why(self.costs), self.binding, *self.matters, *other]

    def plot(self) -> Picture:
        """The waterfall of the step, memory by rank, elasticities and roofline: in a notebook a
        picture, elsewhere plot().save("step.png")."""
        from plan3d.simulator.reporting.palette import Picture
        from plan3d.simulator.reporting.plots import explanation_page

        return Picture(explanation_page(self.costs, self.waterfall, self.sensitivities))

    def plot_ranks(self) -> Picture:
        """How the ranks of the plan lie on nodes and GPUs, and which links its groups use."""
        from plan3d.simulator.reporting.palette import Picture
        from plan3d.simulator.reporting.rank_map import rank_page

        return Picture(rank_page(self.costs.task, self.costs.plans))

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{html_text(line)}</li>" for line in self.sentences)
        return f"<ul>{lines}</ul>{html(self.costs)}"

    def __repr__(self) -> str:
        best = self.best_edits[:1]
        edits = [f", best edit {e['edit']} {100 * e['step_change']:+.1f} %" for e in best]
        return shorten(f"Explanation({summary(self.costs)}{''.join(edits)})", 400)

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def to_dict(self) -> dict[str, Any]:
        """What JSON shows besides the plan's own numbers."""
        costs, edits = self.costs, self.edits
        out: dict[str, Any] = {
            "waterfall": [asdict(loss) for loss in self.waterfall],
            "binding": {
                "memory": not costs.fits or beyond_memory(costs, edits) is not None,
                "sentence": self.binding,
            },
            "edits": self.best_edits,
            "too_large": self.larger_edits,
            "sensitivity": [asdict(s) for s in self.sensitivities],
            "held_by_tables": tabled_share(self.sensitivities),
            "capacity": [_capacity_record(costs, *at) for at in self.capacities],
        }
        return out if self.against is None else {**out, "against": _record(costs, self.against)}

    def _records(self, rows: list[int]) -> list[dict[str, Any]]:
        edits, costs = self.edits, self.costs
        if edits.costs is None:
            return []
        step, memory = edits.costs.step.tolist(), edits.costs.memory_total.tolist()
        fits = np.atleast_1d(probability_fits(edits.costs)).tolist()
        return [
            {
                "edit": edits.text(row),
                "field": edits.fields[row],
                "plan": str(edits.costs.plans.take(row)),
                "step_seconds": step[row],
                "step_change": step[row] / costs.step_seconds - 1,
                "memory_bytes": memory[row],
                "memory_change_bytes": memory[row] - costs.memory_bytes,
                "probability_fits": fits[row],
                "verdict": str(verdict_of(fits[row])),
            }
            for row in rows
        ]


def explain(
    task: Task,
    plan: PlanLike,
    against: PlanLike | None = None,
) -> Explanation:
    """Explain one plan; one that does not fit may be asked about as well.

    `against` is another plan, or changes of this one: "tp=4" or {"tp": 4}. Edits are those that the
    framework of the task launches, where it launches the plan itself. Raises InputError where the
    plan breaks a rule.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> print(explain(task, "tp=2", against="tp=4").against.sentences[0])  # doctest: +ELLIPSIS
    It takes ...
    """
    costs = evaluate(task, plan)
    if costs.plans.rows > 1:
        raise InputError(f"explain takes one plan, not a table of {costs.plans.rows}")
    return Explanation(costs, None if against is None else _contrast(costs, against))


def _contrast(costs: Costs, against: PlanLike) -> Contrast:
    if isinstance(against, Plan):
        other = resolve(against, costs.task.gpus)
    else:
        other = edited(costs.plans.take(0), costs.task, field_changes(against))
    changed, broken = (
        plan_difference.changed_fields(costs.plans, other),
        violations(other, costs.task),
    )
    if broken:
        said = "; ".join(f"{message} (rule {rule})" for rule, message in broken)
        return Contrast(other, changed, broken, None, [f"It is refused: {said}."])
    theirs = simulate(costs.task, other.table(), scalar=True)
    return Contrast(other, changed, [], theirs, plan_difference.contrast_sentences(costs, theirs))


def _record(costs: Costs, against: Contrast) -> dict[str, Any]:
    theirs = against.costs
    out: dict[str, Any] = {
        "plan": str(against.plan),
        "changed": {name: list(was) for name, was in against.changed.items()},
        "refused_by": [{"rule": rule, "message": message} for rule, message in against.refused_by],
    }
    if theirs is not None:
        out |= {
            "step_seconds": theirs.step_seconds,
            "memory_bytes": theirs.memory_bytes,
            "probability_fits": probability_fits(theirs),
            "verdict": verdict(theirs),
            "seconds": {d.name: d.change for d in plan_difference.time_differences(costs, theirs)},
            "bytes": {d.name: d.change for d in plan_difference.memory_differences(costs, theirs)},
        }
    return {**out, "sentences": list(against.sentences)}


def _capacity_record(costs: Costs, factor: float, best: Costs | None) -> dict[str, Any]:
    memory = factor * costs.capacity
    return {
        "factor": factor,
        "memory_bytes": memory,
        "this_plan_fits": bool(costs.memory_bytes <= memory),
        "best_plan": None if best is None else str(best.plans),
        "best_step_seconds": None if best is None else best.step_seconds,
    }
