"""Candidate stages: classes of intervals under every strategy that fits and is not dominated.

A stage has one tp, dp and ZeRO stage; its first layers may recompute more than the others.
Legend: arrays are [class] or [candidate].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from plan3d.simulator.base.arrays import Column, Mask, Value
from plan3d.simulator.plan.plan import from_columns
from plan3d.simulator.plan.stage_layout import Segments
from plan3d.simulator.step.stage_costs import StageCosts, stage_costs

from ..result.options import Deadline
from ..result.tolerances import LAST_DIGITS, ROUNDING
from .dominance import group_elements, row_spans
from .intervals import Intervals
from .pipeline import Pipeline

CHUNK = 8192
"""Candidates that are costed at once: few enough for a cache, and for a deadline."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Stages of a pipeline: a class of intervals under a strategy [candidate]."""

    kind: Column
    strategy: Column
    zero: Column
    first_layers: Column
    """Layers of the first run, which recomputes more."""
    modes: Column
    """Recompute of the first and of the second run [candidate, 2]."""
    most_in_flight: Value
    """Micro-batches in flight that fit."""
    costs: StageCosts

    def take(self, rows: Column | Mask) -> Candidates:
        """The chosen ones."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        return Candidates(**columns, costs=self.costs.take(rows))

    @staticmethod
    def concat(tables: list[Candidates]) -> Candidates:
        """One table of several."""
        columns = {n: np.concatenate([getattr(t, n) for t in tables]) for n in _COLUMNS}
        parts = StageCosts.__slots__
        costs = (np.concatenate([getattr(t.costs, name) for t in tables]) for name in parts)
        return Candidates(**columns, costs=StageCosts(*costs))


_COLUMNS = tuple(f.name for f in fields(Candidates) if f.name != "costs")


def candidates(
    pipeline: Pipeline, limit: float, longest: float, found: Intervals, deadline: Deadline
) -> Candidates:
    """Every candidate for every class that takes at most `longest` seconds and, with one
    micro-batch in flight, `limit` bytes, but those that recompute more than they need to.
    Raises TimeIsUp."""
    costing = _Costing(pipeline, limit, longest, found)
    cells = _cells(pipeline, costing.layers)
    by_zero: dict[int, list[Candidates]] = {zero: [] for zero in costing.zeros}
    for start, stop in row_spans(cells.count, CHUNK):
        deadline.check()
        for zero, table in costing.chunk(cells.take(slice(start, stop))):
            by_zero[zero].append(table)
    return Candidates.concat([table for part in by_zero.values() for table in part])


@dataclass(frozen=True, eq=False)
class _Cells:
    """A class under a strategy with two modes of recompute: `count` candidates that differ in the
    layers of the first run."""

    kind: Column
    strategy: Column
    light: Column
    heavy: Column
    """Recompute of the second and of the first run, as places in Pipeline.recompute."""
    fewest_heavy: Column
    """Layers of the first run of the first candidate; each next one has one more."""
    count: Column

    def take(self, rows: slice | Column) -> _Cells:
        """The chosen ones."""
        return _Cells(*(getattr(self, f.name)[rows] for f in fields(self)))


def _cells(pipeline: Pipeline, layers: Column) -> _Cells:
    """Every class with so many `layers` under every strategy, with every mixture of recompute."""
    parts = []
    kind, strategy = (
        c.ravel()
        for c in np.meshgrid(np.arange(layers.size), np.arange(pipeline.tp.size), indexing="ij")
    )
    for low, high, least, most in _recompute_mixtures(len(pipeline.recompute), layers):
        modes = np.full_like(kind, low), np.full_like(kind, high)
        count = most - least + 1
        parts.append((kind, strategy, *modes, least[kind], count[kind]))
    cells = _Cells(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return cells.take(np.flatnonzero(cells.count > 0))


def _recompute_mixtures(modes: int, layers: Column) -> list[tuple[int, int, Column, Column]]:
    """Recompute of a stage's runs, light and heavy, and how many `layers` [class] may be heavy, at
    least and at most, so that no mixture occurs twice."""
    one, none = np.ones_like(layers), np.zeros_like(layers)
    if modes == 1:
        return [(0, 0, none, none)]
    pairs = [(a, b) for a in range(modes) for b in range(a + 1, modes)]
    return [
        (low, high, none if (low, high) == pairs[0] else one, layers - (low != 0))
        for low, high in pairs
    ]


@dataclass(frozen=True, eq=False)
class _Costing:
    """Costs of the candidates of a pipeline."""

    pipeline: Pipeline
    limit: float
    longest: float
    intervals: Intervals

    @cached_property
    def start(self) -> Column:
        """The layer before each class."""
        return self.intervals.start[self.intervals.examples]

    @cached_property
    def layers(self) -> Column:
        """Layers of each class."""
        return self.intervals.end[self.intervals.examples] - self.start

    @cached_property
    def before_head(self) -> Mask:
        """Whether each class leaves the head to a stage of its own."""
        return self.intervals.before_head[self.intervals.examples]

    @cached_property
    def zeros(self) -> list[int]:
        found: list[int] = np.flatnonzero(self.pipeline.legal.any(axis=(0, 1))).tolist()
        return found

    def chunk(self, cells: _Cells) -> Iterator[tuple[int, Candidates]]:
        """The candidates of some cells, by ZeRO stage."""
        pipeline, (owner, position) = self.pipeline, group_elements(cells.count)
        rows = cells.take(owner)
        kind, strategy, more = rows.kind, rows.strategy, rows.fewest_heavy + position
        layers = self.layers[kind]
        # A run of no layers is as the other one, for what ends a model goes with a run.
        first = np.where(more, rows.heavy, rows.light)
        second = np.where((more < layers) | (layers == 0), rows.light, rows.heavy)
        modes = np.array(pipeline.recompute)[np.stack([first, second], 1)]
        runs = self._runs(strategy, np.stack([more, layers - more], 1), modes)
        plans = from_columns(pipeline.columns(strategy), (), runs)
        at, before_head = self.start[kind], self.before_head[kind]
        found = stage_costs(pipeline.task, plans, at, self.zeros, before_head)
        for zero, costs in found.items():
            free = self.limit * (1 - LAST_DIGITS) - costs.static_bytes
            # In whole chunks.
            each = np.maximum(costs.micro_batch_bytes, 1.0)
            fit = np.floor(free / each * pipeline.chunks) / pipeline.chunks
            flights = np.minimum(fit, pipeline.in_flight[0])
            flights[costs.update_bytes > self.limit * (1 - LAST_DIGITS)] = 0
            own = kind, strategy, np.full_like(more, zero), more, modes
            table = Candidates(*own, flights, _chunk_costs(costs, pipeline.chunks))
            legal = pipeline.legal[strategy, first, zero] & pipeline.legal[strategy, second, zero]
            follows = (position > 0) & np.concatenate([[False], legal[:-1]])
            ok = (
                (flights >= pipeline.in_flight[-1])
                & legal
                & ~_no_better_than_previous(table, follows)
            )
            yield zero, table.take(ok & (costs.seconds <= self.longest * (1 + ROUNDING)))

    def _runs(self, strategy: Column, layers: Column, modes: Column) -> Segments:
        """Each candidate's two runs, without ZeRO [candidate, 2]."""
        none, p = np.zeros_like(modes), self.pipeline
        tp, dp = p.tp[strategy][:, None] + none, p.dp[strategy][:, None] + none
        return Segments(none, layers, tp, dp, none, modes)


def _chunk_costs(costs: StageCosts, chunks: int) -> StageCosts:
    """Costs with the seconds of one chunk of a stage: while the pipeline fills and drains, the
    other stages wait for a chunk."""
    if chunks == 1:
        return costs
    passes = {name: getattr(costs, name) / chunks for name in ("seconds", "forward", "backward")}
    return replace(costs, **passes)


def _no_better_than_previous(table: Candidates, follows: Mask) -> Mask:
    """Candidates that recompute one layer more than the one before them, where they follow a
    legal one, and gain nothing."""
    same = follows[1:] & (table.most_in_flight[1:] <= table.most_in_flight[:-1])
    here = np.arange(1, table.kind.size)
    out = np.zeros(table.kind.size, bool)
    better = excess(table.costs, here - 1, here) <= table.costs.seconds[1:] * (1 + LAST_DIGITS)
    out[1:] = same & better
    return out


def excess(costs: StageCosts, one: Column, other: Column) -> Value:
    """Seconds beyond which `other` would have to be slower for `one` to be never worse.

    With `one` instead, sum + rho + gamma + omega of every label (stage_dp.labels) grows by no
    more than this less the seconds of `other`.
    """

    def more(name: str) -> Value:
        column = getattr(costs, name)
        out: Value = column[one] - column[other]
        return out

    rho = np.maximum(np.maximum(more("reduce_seconds"), -more("backward")), 0.0)
    gamma = np.maximum(np.maximum(more("gather_seconds"), -more("forward")), 0.0)
    out: Value = costs.seconds[one] + rho + gamma + np.maximum(more("optimizer_seconds"), 0.0)
    return out
