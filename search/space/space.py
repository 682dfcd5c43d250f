"""Search space: axes of values, expanded into tables of legal plans.

A space is a task and, for each plan field, an axis: the values that a search may choose, one value
where the field is constant, or AUTO where it follows from other fields (axes.DERIVED). Its plans
are the combinations that no rule forbids. Axes are expanded one after another, level by level; a
rule prunes as soon as the fields it reads are known, and counts what it removed. Tables come in
chunks that fit a cache, in an order that keeps plans with equal stages next to each other.

    Space.of      axes of a task, narrowed by the values that the user chose
    levels        the axes to expand, in order, each with the rules that are decided after it
    Space.grow    partial plans, one level further
    Space.chunks  tables of complete plans
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from plan3d.simulator.base.arrays import Column, Index, Mask
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.field_values import AUTO
from plan3d.simulator.plan.fields import (
    AXES,
    EXPANSION,
    OPT_IN,
    check_field,
    code,
)
from plan3d.simulator.plan.gossip_graphs import Topology
from plan3d.simulator.plan.plan import USUAL_FIELDS, Plan, from_columns
from plan3d.simulator.plan.stage_layout import mtp_stage, read_layout
from plan3d.simulator.plan.synchronisation import gossips
from plan3d.simulator.plan.tensor_grid import every_grid
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.rules.training_rules import default_precision
from plan3d.simulator.rules.validity import binding_rules
from plan3d.simulator.task import Task

from .axes import (
    DERIVED,
    LARGEST_MICRO_BATCH,
    LONGER,
    default_axes,
    derived_value,
    launchable_micro_batches,
    micro_batch_sizes,
)

Choices = Mapping[str, Sequence[Any]]
"""Values chosen by plan field: {"tp": [4, 8], "zero": [1]}."""
CHUNK = 131072
"""Rows of a table: few enough for 200 MB of columns, enough to share what rows have in common."""
Columns = dict[str, Any]
"""By field: one value a row (an array [row]), or one for all rows (a number, a tuple of layers)."""


class PartialPlans(NamedTuple):
    """Plans of which some fields are known."""

    columns: Columns
    rows: int

    def take(self, rows: Index) -> PartialPlans:
        """The chosen rows."""
        columns = {
            name: column.take(rows) if isinstance(column, np.ndarray) else column
            for name, column in self.columns.items()
        }
        return PartialPlans(columns, rows.size)

    def span(self, start: int, stop: int) -> PartialPlans:
        """The rows from `start` to `stop`, or to the last one."""
        columns = {
            name: column[start:stop] if isinstance(column, np.ndarray) else column
            for name, column in self.columns.items()
        }
        return PartialPlans(columns, min(stop, self.rows) - start)

    def table(self) -> Plan:
        """Complete plans as a table; constants are the same in every row."""
        columns = {
            name: self.columns[name]
            if isinstance(self.columns[name], np.ndarray)
            else np.broadcast_to(np.int64(self.columns[name]), (self.rows,))
            for name in AXES
        }
        return from_columns(columns, self.columns["layers_per_stage"])


@dataclass(frozen=True)
class Level:
    """One axis to expand, and the rules that are decided after it."""

    name: str
    values: Column
    task: Task
    rules: list[Rule]
    completions: int
    """Combinations of the axes after it: what one removed row stands for."""

    @property
    def derived(self) -> bool:
        """Whether the field follows from others (DERIVED)."""
        return bool((self.values < 0).all())

    def expand(self, plans: PartialPlans) -> PartialPlans:
        """Every row once with each value of the axis; a derived field is computed instead."""
        columns, rows = plans
        if self.derived:
            return self._derive(plans)
        width = self.values.size
        repeated = {
            name: np.repeat(column, width) if isinstance(column, np.ndarray) else column
            for name, column in columns.items()
        }
        repeated[self.name] = np.tile(self.values, rows)
        return PartialPlans(repeated, rows * width)

    def _derive(self, plans: PartialPlans) -> PartialPlans:
        """Every row with what the field follows from the others; then rows with another value."""
        read, parts = SimpleNamespace(**plans.columns), []
        for code_of_value in self.values.tolist():
            derived = derived_value(self.name, code_of_value, read, self.task)
            parts.append(np.broadcast_to(np.asarray(derived, np.int64), (plans.rows,)))
        if len(parts) == 1:
            own = {self.name: np.ascontiguousarray(parts[0])}
            return PartialPlans({**plans.columns, **own}, plans.rows)
        rows = np.tile(np.arange(plans.rows), len(parts))
        other = np.where(parts[1] > 0, parts[1], LONGER)
        own = {self.name: np.concatenate([parts[0], other])}
        return PartialPlans({**plans.take(rows).columns, **own}, rows.size)

    def legal(self, plans: PartialPlans, rule: Rule) -> Mask:
        """Whether a rule allows each row."""
        ok = rule.ok(SimpleNamespace(**plans.columns), self.task)
        return np.broadcast_to(ok, (plans.rows,))


@dataclass
class Space:
    """The legal plans of a task under constraints, and the count of what rules removed."""

    task: Task
    axes: dict[str, tuple[int, ...]]
    layers_per_stage: tuple[int, ...] = ()
    search_rules: tuple[Rule, ...] = ()
    """What is left out of the legal plans."""
    removed_by_rule: Counter[str] = field(default_factory=Counter)
    """Candidates that each rule removed, complete once all chunks were taken."""

    @classmethod
    def of(cls, task: Task, choose: Choices | None = None) -> Space:
        """The default space with some axes replaced; InputError for an unknown field or value."""
        axes = default_axes(task) | {"precision": (default_precision(task),)}
        if task.framework:
            tried = task.framework.search_values.items()
            axes |= {name: tuple(code(name, v) for v in values) for name, values in tried}
        layout: tuple[int, ...] = ()
        for name, values in (choose or {}).items():
            check_field(name)
            check_list(name, values)
            if name == "layers_per_stage":
                written = values[0] if len(values) == 1 else values
                layout, axes["mtp_stage"] = read_layout(written), (mtp_stage(written),)
                continue
            if name == "segments":
                raise InputError(
                    "segments cannot be fixed in a search of uniform plans; estimate and timeline "
                    "take them"
                )
            if not values:
                raise InputError(f"--choose {name} needs at least one value")
            axes[name] = tuple(dict.fromkeys(code(name, value) for value in values))
            derived = name in DERIVED or name == "tp_grid"
            if AUTO in axes[name] and (len(axes[name]) > 1 or not derived):
                raise InputError(f"{name}=auto cannot be searched; give its values")
        if axes["tp_grid"] == (AUTO,):
            axes["tp_grid"] = every_grid(axes["tp"])
        sizes_open = bool(task.model.kinds) and "micro_batch" not in (choose or {})
        if sizes_open and any(axes["tp_grid"]):
            # A grid shares the sequences of a micro-batch among its ranks.
            axes["micro_batch"] = micro_batch_sizes(task, LARGEST_MICRO_BATCH * max(axes["tp"]))
        elif sizes_open and (opted_in(axes) or task.adapters):
            # Elsewhere bounds add the other sizes, which do not cover these plans.
            axes["micro_batch"] = launchable_micro_batches(task)
        if "topology" not in (choose or {}):
            graphs = {Topology.EXPONENTIAL * gossips(sync) for sync in axes["sync"]}
            axes["topology"] = tuple(graphs)
        return cls(task, axes, layout)

    @property
    def candidates(self) -> int:
        """Combinations of the axes' values."""
        return prod(len(values) for values in self.axes.values())

    @property
    def searched_fields(self) -> tuple[str, ...]:
        """The fields that have several values."""
        return tuple(name for name in AXES if len(self.axes[name]) > 1)

    def check_bounds_apply(self, backend: str, objective: str) -> None:
        """Raise InputError where the search is over more than the bounds of a backend cover."""
        others = opted_in(self.axes)
        if others or objective == "time-to-accuracy":
            raise InputError(
                f"{backend} bounds plain all-reduce training on GPUs only: it cannot search "
                f"{others[0] if others else objective}; the exhaustive search can"
            )

    @property
    def root(self) -> PartialPlans:
        """The one row of what is the same in every plan, AUTO where it is derived."""
        constants: Columns = {name: v[0] for name, v in self.axes.items() if len(v) == 1}
        return PartialPlans({**constants, "layers_per_stage": self.layers_per_stage}, 1)

    def grow(self, plans: PartialPlans, level: Level) -> PartialPlans:
        """Partial plans with one axis more, those that a rule forbids left out and counted."""
        if level.derived:
            plans = level.expand(plans)
            rows, own = np.arange(plans.rows), {}
        else:
            rows = np.repeat(np.arange(plans.rows), level.values.size)
            own = {level.name: np.tile(level.values, plans.rows)}
        varied = {n: c for n, c in plans.columns.items() if isinstance(c, np.ndarray)}
        constant = {n: c for n, c in plans.columns.items() if n not in varied}
        for rule in level.rules:
            # Only what a rule reads is gathered before it has left out its rows.
            read = {name: varied[name].take(rows) for name in rule.fields if name in varied}
            legal = level.legal(PartialPlans({**constant, **read, **own}, rows.size), rule)
            removed = rows.size - int(np.count_nonzero(legal))
            if removed:
                self.removed_by_rule[rule.name] += removed * level.completions
                rows, own = rows[legal], {name: column[legal] for name, column in own.items()}
            if not rows.size:
                break
        if level.derived and rows.size == plans.rows:
            return plans
        return PartialPlans({**plans.take(rows).columns, **own}, rows.size)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that some of its plans may break."""
        stated = {n for n, usual in USUAL_FIELDS.items() if self.axes[n] != (usual,)}
        framework = self.task.framework.rules if self.task.framework else ()
        return (*binding_rules(stated, self.task), *framework)

    def chunks(self, rows: int = CHUNK) -> Iterator[Plan]:
        """Tables of legal plans of at most `rows` rows each."""
        self.removed_by_rule.clear()
        yield from self._descend(self.root, levels(self), rows)

    def _descend(
        self, plans: PartialPlans, remaining: Sequence[Level], rows: int
    ) -> Iterator[Plan]:
        """Tables of the completions of partial plans, over the remaining levels."""
        if not remaining:
            yield plans.table()
            return
        level, *deeper = remaining
        piece = max(rows // level.values.size, 1)
        for start in range(0, plans.rows, piece):
            grown = self.grow(plans.span(start, start + piece), level)
            if grown.rows:
                yield from self._descend(grown, deeper, rows)


def opted_in(axes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Fields of OPT_IN that are not kept at their usual value."""
    return [name for name, value in OPT_IN.items() if axes[name] != (value,)]


def levels(space: Space, order: Sequence[str] = EXPANSION) -> list[Level]:
    """The axes to expand, in order, each with the rules that are decided after it."""
    names = [name for name in order if len(space.axes[name]) > 1 or _is_derived(space, name)]
    names = _after_sources(space, names or ["tp"])
    known = {name for name in order if name not in names}
    waiting = [*space.rules, *space.search_rules]
    out = []
    for i, name in enumerate(names):
        known.add(name)
        ready = [rule for rule in waiting if known.issuperset(rule.fields)]
        waiting = [rule for rule in waiting if not known.issuperset(rule.fields)]
        completions = prod(len(space.axes[later]) for later in names[i + 1 :])
        values = np.array(space.axes[name], np.int64)
        out.append(Level(name, values, space.task, ready, completions))
    return out


def _after_sources(space: Space, names: Sequence[str]) -> list[str]:
    """The axes, every derived one no earlier than the last that it follows from."""
    place = {name: i for i, name in enumerate(names)}

    def turn(name: str) -> tuple[int, bool]:
        sources = DERIVED[name].reads if _is_derived(space, name) else ()
        last = max((turn(source)[0] for source in sources if source in place), default=-1)
        return max(last, place[name]), last > place[name]

    return sorted(names, key=turn)


def _is_derived(space: Space, name: str) -> bool:
    return all(value < 0 for value in space.axes[name])


def check_list(field: str, values: object) -> None:
    """Raise InputError where the values of a field are one value."""
    if isinstance(values, str) or not isinstance(values, Collection):
        raise InputError(f"the values of {field} must be a list, such as [{values!r}]")
