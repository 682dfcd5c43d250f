"""Search space: axes of values, expanded into tables of legal plans.

Axes are expanded one after another; each rule prunes as soon as the fields it reads are known,
and counts what it removed. Tables come in chunks that fit a cache, in an order that keeps plans
with equal stages next to each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Column
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.codes import gossips
from plan3d.simulator.plan.fields import AXES, EXPANSION, PLAIN
from plan3d.simulator.plan.gossip_graphs import Topology
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.plan.stage_layout import mtp_stage, read_layout
from plan3d.simulator.plan.tensor_grid import every_grid
from plan3d.simulator.plan.values import AUTO, check_field, code
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.rules.tensor_rules import GRID_RULES
from plan3d.simulator.rules.training_rules import default_precision
from plan3d.simulator.rules.validity import POLICY_RULES, RULES
from plan3d.simulator.task import Task

from .axes import (
    DERIVED,
    LARGEST_MICRO_BATCH,
    default_axes,
    micro_batch_sizes,
)

CHUNK = 131072
"""Rows of a table: few enough for 200 MB of columns, enough to share what rows have in common."""


@dataclass
class Space:
    """The legal plans of a task under constraints, and the count of what rules removed."""

    task: Task
    axes: dict[str, tuple[int, ...]]
    layers_per_stage: tuple[int, ...] = ()
    removed_by_rule: Counter[str] = field(default_factory=Counter)
    """Candidates that each rule removed, once the space was walked."""

    @classmethod
    def of(cls, task: Task, choose: Mapping[str, Sequence[Any]] | None = None) -> Space:
        """The default space with some axes replaced; InputError for an unknown field or value."""
        axes = default_axes(task) | {"precision": (default_precision(task),)}
        if task.framework:
            tried = task.framework.tries.items()
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
        if any(axes["tp_grid"]) and task.model.kinds and "micro_batch" not in (choose or {}):
            # A grid shares the sequences of a micro-batch among its ranks.
            axes["micro_batch"] = micro_batch_sizes(task, LARGEST_MICRO_BATCH * max(axes["tp"]))
        if "topology" not in (choose or {}):
            graphs = {Topology.EXPONENTIAL * gossips(sync) for sync in axes["sync"]}
            axes["topology"] = tuple(graphs)
        return cls(task, axes, layout)

    @property
    def candidates(self) -> int:
        """Combinations of the axes' values."""
        return prod(len(values) for values in self.axes.values())

    def check_bounds_apply(self, backend: str, objective: str) -> None:
        """Raise InputError where the search is over more than its bounds know."""
        odd = [name for name, plain in PLAIN.items() if self.axes[name] != (plain,)]
        if odd or objective == "time-to-accuracy":
            raise InputError(
                f"{backend} bounds plain all-reduce training on GPUs only: it cannot search "
                f"{odd[0] if odd else objective}; the exhaustive search can"
            )

    def grow(
        self, columns: dict[str, Any], length: int, level: Level
    ) -> tuple[dict[str, Any], int]:
        """Partial plans with one axis more, those that a rule forbids left out and counted."""
        return self._prune(*expand(columns, length, level), level)

    def chunks(self, rows: int = CHUNK) -> Iterator[Plan]:
        """Tables of legal plans of at most `rows` rows; `removed` is complete at the end."""
        self.removed_by_rule.clear()
        yield from self._walk(self.constants, 1, levels(self), 0, rows)

    @property
    def constants(self) -> dict[str, Any]:
        """What is the same in every plan, AUTO where it is derived."""
        one: dict[str, Any] = {name: v[0] for name, v in self.axes.items() if len(v) == 1}
        one["layers_per_stage"] = self.layers_per_stage
        return one

    def _walk(
        self,
        columns: dict[str, Any],
        length: int,
        walk: list[Level],
        depth: int,
        rows: int,
    ) -> Iterator[Plan]:
        if depth == len(walk):
            yield table(columns, length)
            return
        level = walk[depth]
        width = len(level.values)
        piece = max(rows // width, 1)
        for at in range(0, length, piece):
            part = _slice(columns, at, min(at + piece, length), length)
            size = min(piece, length - at)
            part, size = expand(part, size, level)
            part, size = self._prune(part, size, level)
            if size:
                yield from self._walk(part, size, walk, depth + 1, rows)

    def _prune(
        self, columns: dict[str, Any], length: int, level: Level
    ) -> tuple[dict[str, Any], int]:
        for rule in level.rules:
            ok = np.broadcast_to(rule.ok(SimpleNamespace(**columns), self.task), (length,))
            kept = int(np.count_nonzero(ok))
            if kept < length:
                self.removed_by_rule[rule.name] += (length - kept) * level.completions
                rows = np.flatnonzero(ok)
                columns = {
                    name: c.take(rows) if isinstance(c, np.ndarray) else c
                    for name, c in columns.items()
                }
                length = kept
            if not length:
                break
        return columns, length


def check_list(field: str, values: object) -> None:
    """Raise InputError where the values of a field are one value."""
    if isinstance(values, str) or not isinstance(values, Collection):
        raise InputError(f"the values of {field} must be a list, such as [{values!r}]")


@dataclass
class Level:
    """One axis to expand, and the rules that can be decided after it."""

    name: str
    values: Column
    task: Task
    rules: list[Rule]
    completions: int
    """Combinations of the axes still to come: what one removed row stands for."""

    @property
    def derived(self) -> bool:
        """Whether the field follows from others (DERIVED)."""
        return self.values.size == 1 and bool(self.values[0] == AUTO)


def levels(space: Space, order: Sequence[str] = EXPANSION) -> list[Level]:
    """The axes to expand, in order, each with the rules that are decided after it."""
    names = [name for name in order if len(space.axes[name]) > 1 or _is_derived(space, name)]
    names = _after_sources(space, names or ["tp"])
    known = {name for name in order if name not in names}
    plain = all(space.axes[name] == (value,) for name, value in PLAIN.items())
    hold = (
        *(POLICY_RULES if plain else ()),
        *(GRID_RULES if space.axes["tp_grid"] == (0,) else ()),
    )
    waiting = [rule for rule in RULES if rule not in hold]
    if space.task.framework:
        waiting += space.task.framework.rules
    walk = []
    for i, name in enumerate(names):
        known.add(name)
        ready = [rule for rule in waiting if known >= set(rule.fields)]
        waiting = [rule for rule in waiting if rule not in ready]
        completions = prod(len(space.axes[later]) for later in names[i + 1 :])
        values = np.array(space.axes[name], np.int64)
        walk.append(Level(name, values, space.task, ready, completions))
    return walk


def _after_sources(space: Space, names: Sequence[str]) -> list[str]:
    """The axes, every derived one no earlier than the last that it follows from."""
    place = {name: i for i, name in enumerate(names)}

    def turn(name: str) -> tuple[int, bool]:
        sources = DERIVED[name].reads if _is_derived(space, name) else ()
        last = max((turn(source)[0] for source in sources if source in place), default=-1)
        return max(last, place[name]), last > place[name]

    return sorted(names, key=turn)


def _is_derived(space: Space, name: str) -> bool:
    return space.axes[name] == (AUTO,)


def _slice(columns: dict[str, Any], start: int, stop: int, length: int) -> dict[str, Any]:
    if stop - start == length:
        return columns
    return {n: c[start:stop] if isinstance(c, np.ndarray) else c for n, c in columns.items()}


def expand(columns: dict[str, Any], length: int, level: Level) -> tuple[dict[str, Any], int]:
    """Every row once with each value of the axis; an AUTO axis is worked out instead."""
    if level.derived:
        derived = DERIVED[level.name].compute(SimpleNamespace(**columns), level.task)
        column = np.ascontiguousarray(np.broadcast_to(np.asarray(derived, np.int64), (length,)))
        return {**columns, level.name: column}, length
    width = level.values.size
    repeated = {
        name: np.repeat(c, width) if isinstance(c, np.ndarray) else c for name, c in columns.items()
    }
    repeated[level.name] = np.tile(level.values, length)
    return repeated, length * width


def table(columns: dict[str, Any], length: int) -> Plan:
    """Plans of complete columns; plain numbers are the same in every row."""
    full = {
        name: columns[name]
        if isinstance(columns[name], np.ndarray)
        else np.broadcast_to(np.int64(columns[name]), (length,))
        for name in AXES
    }
    return from_columns(full, columns["layers_per_stage"])
