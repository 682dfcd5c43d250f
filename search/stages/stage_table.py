"""Stage table: what every stage of a pipeline may be, layers and strategy, with its costs.

Classes of intervals are costed once for every strategy, in chunks; what another candidate beats
whatever the other stages are is left out.
Legend: arrays are [class], [candidate] or [entry], a candidate in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from plan3d.simulator.base.arrays import Column, Value
from plan3d.simulator.step.layer_run_stages import hop_seconds

from ..result.options import Deadline
from .candidates import Candidates, candidates, excess
from .dominance import group_elements, tuple_codes, undominated_rows
from .intervals import Intervals, can_hold_all, most_layers
from .pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Entries:
    """What one stage of a pipeline may be, ordered by end, start and GPUs [entry]."""

    start: Column
    end: Column
    candidate: Column
    gpus: Column
    """In units that all meshes are multiples of; 0 where all stages have equally many."""
    input_boundary: Column
    """Code of the size of the boundary tensor that comes in."""
    output_boundary: Column
    """The same of what goes out."""
    tp: Column
    costs: Value
    """Seconds T, b, f, R, G, O (simulator.step.stage_costs), T, b and f of a chunk [6, entry]."""

    def take(self, rows: Column) -> Entries:
        """The chosen entries."""
        return Entries(
            start=self.start[rows],
            end=self.end[rows],
            candidate=self.candidate[rows],
            gpus=self.gpus[rows],
            input_boundary=self.input_boundary[rows],
            output_boundary=self.output_boundary[rows],
            tp=self.tp[rows],
            costs=self.costs[:, rows],
        )


@dataclass(frozen=True, eq=False)
class StageTable:
    """What every stage of one pipeline may be."""

    pipeline: Pipeline
    candidates: Candidates
    entries: list[Entries]
    """[stage]"""
    hops: Value
    """Seconds of the sends between two stages, by the codes of their boundary tensors; the last
    code is that of no stage [boundary, boundary]."""
    tied: Value
    """Seconds to reduce a tied embedding's gradient, by tp [tp]."""
    gpus: int
    """All GPUs in the units of Entries.gpus; 0 where all stages have equally many."""

    @classmethod
    def of(
        cls, pipeline: Pipeline, limit: float, longest: float, deadline: Deadline
    ) -> StageTable | None:
        """The table of a pipeline whose stages need at most `limit` bytes and `longest` seconds;
        None when none does. Raises TimeIsUp."""
        most = most_layers(pipeline, longest, limit)
        if not can_hold_all(pipeline, most):
            return None
        layers = pipeline.task.model.layers
        bare = pipeline.allows_bare_head
        found = Intervals.of(pipeline, longest, limit, bare_head=bare).restrict(most, layers)
        if not found.start.size:
            return None
        table = candidates(pipeline, limit, longest, found, deadline)
        if not table.kind.size:
            return None
        handed = np.stack([table.costs.received_bytes, table.costs.sent_bytes])
        sizes, boundary = np.unique(handed, return_inverse=True)
        tp = pipeline.tp[table.strategy]
        tied = np.zeros(int(tp.max()) + 1)
        tied[tp] = table.costs.tied_embedding_seconds
        unit = 0
        if not pipeline.has_equal_stages:
            unit = int(np.gcd.reduce([*pipeline.gpus.tolist(), pipeline.task.gpus]))
        gpus = pipeline.gpus[table.strategy] // unit if unit else np.zeros_like(tp)
        codes_of = boundary.reshape(handed.shape)
        place = Places(found, table, gpus, codes_of, tp, bool(tied.any()), deadline)
        return cls(
            pipeline=pipeline,
            candidates=table,
            entries=[place.entries(i, n) for i, n in enumerate(pipeline.in_flight)],
            hops=_hops(pipeline, sizes),
            tied=tied,
            gpus=pipeline.task.gpus // unit if unit else 0,
        )


def _hops(pipeline: Pipeline, sizes: Value) -> Value:
    """StageTable.hops of boundary tensors of these sizes.

    Chunks of two neighbours meet v times; from the last rank to the first v - 1 sends go, which
    are of the smallest tensor at least.
    """
    v, between = pipeline.chunks, max(pipeline.pp - 1, 1)
    each = pipeline.sends / max(pipeline.pp * v - 1, 1)
    seconds = hop_seconds(pipeline.task, sizes[:, None], sizes[None])
    out = np.zeros((sizes.size + 1, sizes.size + 1))
    out[:-1, :-1] = each * (v * seconds + (v - 1) / between * seconds.min())
    return out


@dataclass(frozen=True, eq=False)
class Places:
    """Candidates and the intervals that they may be placed on."""

    intervals: Intervals
    table: Candidates
    gpus: Column
    boundary: Column
    """Codes of what comes in and goes out [2, candidate]."""
    tp: Column
    tied: bool
    deadline: Deadline
    undominated: dict[bytes, Column] = field(default_factory=dict)
    """Undominated candidates by those that they are chosen from: many stages have the same."""

    def entries(self, stage: int, flights: float) -> Entries:
        """What one stage may be that keeps so many micro-batches in flight."""
        intervals, table = self.intervals, self.table
        here = np.flatnonzero((intervals.first_stage <= stage) & (stage <= intervals.last_stage))
        wanted = np.isin(table.kind, intervals.kind[here]) & (table.most_in_flight >= flights)
        key = np.packbits(wanted).tobytes()
        if key not in self.undominated:
            self.undominated[key] = self._undominated_rows(np.flatnonzero(wanted))
        rows = self.undominated[key]
        kinds = np.arange(intervals.examples.size + 1)
        begin = np.searchsorted(table.kind[rows], kinds)
        own = intervals.kind[here]
        owner, position = group_elements(begin[own + 1] - begin[own])
        row, at = rows[begin[own][owner] + position], here[owner]
        c = table.costs
        parts = (
            c.seconds,
            c.backward,
            c.forward,
            c.reduce_seconds,
            c.gather_seconds,
            c.optimizer_seconds,
        )
        return Entries(
            start=intervals.start[at],
            end=intervals.end[at],
            candidate=row,
            gpus=self.gpus[row],
            input_boundary=self.boundary[0, row],
            output_boundary=self.boundary[1, row],
            tp=self.tp[row],
            costs=np.stack([part[row] for part in parts]),
        )

    def _undominated_rows(self, rows: Column) -> Column:
        """The candidates that no other of their class beats whatever the other stages are,
        ordered by class and GPUs."""
        columns = [self.table.kind, self.gpus, *self.boundary, self.tp * self.tied]
        group = tuple_codes([column[rows] for column in columns])
        costs = self.table.costs.take(rows)
        upper = (
            costs.seconds + costs.reduce_seconds + costs.gather_seconds + costs.optimizer_seconds
        )

        def excess_of(leaders: Column, others: Column) -> Value:
            return excess(costs, leaders, others)

        kept = rows[undominated_rows(group, upper, costs.seconds, excess_of, self.deadline)]
        return kept[np.lexsort((self.gpus[kept], self.table.kind[kept]))]
