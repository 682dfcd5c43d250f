"""Event simulation of a pipeline: exact times of every operation, for any seconds of any stage.

    start = max(end of the rank's last operation, end of its input + hop),  end = start + seconds

Levels of a schedule's graph are timed one after another, all layouts of a batch at once.
Source: the longest path through the graph, which is the time of a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..base.arrays import Column, Value
from ..base.errors import InputError
from .dependency_graph import DependencyGraph
from .operation_orders import Pass

CELLS = 8_000_000
"""Operations times layouts that are timed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of every stage for one micro-batch: [stage], or [layout, stage] for many layouts."""

    forward: Value
    input_gradient: Value
    weight_gradient: Value
    hop: Value | float = 0.0
    """Seconds to send a boundary tensor: one number, or by boundary [.., stage - 1]."""
    blocking_share: float = 0.0
    """Share of a hop for which sender and receiver are both blocked; 0 sends run beside compute,
    1 they block. A sender does not wait for a receiver that is late."""
    pair_share: float = 1.0
    """Seconds of a forward beside a backward pass, over their sum."""

    @property
    def shape(self) -> tuple[int, ...]:
        """() or (layouts,)."""
        each = (self.forward, self.input_gradient, self.weight_gradient)
        return np.broadcast_shapes(*(np.shape(a) for a in each))[:-1]

    def check(self, graph: DependencyGraph) -> None:
        """Raise InputError when the times do not belong to this graph or are not times."""
        for name in ("forward", "input_gradient", "weight_gradient"):
            array = np.asarray(getattr(self, name))
            if array.shape[-1:] != (graph.stages,):
                have = array.shape[-1] if array.ndim else 1
                raise InputError(f"{name} gives {have} stages; the schedule has {graph.stages}")
        for name in (
            "forward",
            "input_gradient",
            "weight_gradient",
            "hop",
            "blocking_share",
            "pair_share",
        ):
            array = np.asarray(getattr(self, name), float)
            if not np.isfinite(array).all() or (array < 0).any():
                worst = array.min() if np.isfinite(array).all() else "not finite"
                raise InputError(f"{name} is {worst}; seconds must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Start and end of every operation, [operation] or [operation, layout]."""

    graph: DependencyGraph
    start: Value
    end: Value

    @property
    def makespan(self) -> Value:
        """Seconds from the first start to the last end."""
        return np.asarray(self.end.max(axis=0))

    @property
    def step_seconds(self) -> Value:
        """Seconds from one step to the next."""
        schedule = self.graph.schedule
        if schedule is None or not schedule.steps_apart:
            return self.makespan
        return np.asarray((self._last_ends - self._first_starts).max(axis=0))

    @property
    def busy(self) -> Value:
        """Seconds that each rank computes [rank, ...]."""
        return np.asarray(np.add.reduceat(self._operation_seconds, self._rank_begins, axis=0))

    @property
    def idle(self) -> Value:
        """Seconds of a step that each rank does not compute [rank, ...]."""
        return np.asarray(self.step_seconds - self.busy)

    @property
    def _operation_seconds(self) -> Value:
        """Seconds by operation; what runs together counts once."""
        g, out = self.graph, self.end - self.start
        out[g.partner[g.partner >= 0]] = 0.0
        return out

    @property
    def _rank_begins(self) -> Column:
        return np.searchsorted(self.graph.rank, np.arange(self.graph.ranks))

    @property
    def _first_starts(self) -> Value:
        out: Value = self.start[self._rank_begins]
        return out

    @property
    def _last_ends(self) -> Value:
        ends = np.append(self._rank_begins[1:], self.graph.operations) - 1
        out: Value = self.end[ends]
        return out

    def layout(self, row: int) -> Timeline:
        """One layout of a batch."""
        return Timeline(graph=self.graph, start=self.start[:, row], end=self.end[:, row])

    def critical_path(self) -> Column:
        """Operations that decide the last end, first to last: each starts when another lets it."""
        assert self.end.ndim == 1
        g = self.graph
        at = int(self.end[g.operation].argmax()) if g.operations else -1
        path = []
        ends = np.append(self.end[g.operation], 0.0)
        nodes = g.operation.size
        while at < nodes:
            path.append(int(g.operation[at]))
            waits = g.waits[:, at]
            at = int(waits[ends[waits].argmax()])
        return np.array(path[::-1])

    def live_activations(
        self, kept: Value, pending: Value | None = None
    ) -> list[tuple[Value, Value]]:
        """Seconds at which the activations of each rank change, and their bytes from then on.

        `kept` [stage] are the bytes of one micro-batch; they go with its last gradient, all but
        the `pending` ones (all, when None) with its input gradient.
        """
        assert self.end.ndim == 1
        g, out = self.graph, []
        forward = g.kind == Pass.FORWARD
        change = np.where(forward, kept[g.stage], -self.freed_bytes(kept, pending))
        moments = np.where(forward, self.start, self.end)
        for rank in range(g.ranks):
            own = np.flatnonzero(g.rank == rank)
            order = own[np.lexsort((change[own], moments[own]))]
            out.append((moments[order], np.cumsum(change[order])))
        return out

    def freed_bytes(self, kept: Value, pending: Value | None = None) -> Value:
        """Bytes that are free once an operation has ended [operation]; arguments of
        `live_activations`."""
        g = self.graph
        late = kept if pending is None else pending
        splits = np.zeros((g.stages, g.micro_batches), bool)
        weights = g.kind == Pass.WEIGHT
        splits[g.stage[weights], g.micro_batch[weights]] = True
        split_here = splits[g.stage, g.micro_batch] & (g.kind == Pass.INPUT)
        freed = np.where(weights, late[g.stage], kept[g.stage])
        freed = np.where(split_here, kept[g.stage] - late[g.stage], freed)
        out: Value = np.where(g.kind == Pass.FORWARD, 0.0, freed)
        return out

    def peak(self, kept: Value, pending: Value | None = None) -> Value:
        """Most bytes of activations on each rank [rank]."""
        return np.array([float(held.max()) for _, held in self.live_activations(kept, pending)])


def simulate(graph: DependencyGraph, times: StageTimes) -> Timeline:
    """Time every operation of one layout or of a batch of them."""
    times.check(graph)
    shape = times.shape
    rows = max(CELLS // max(graph.operations, 1), 1)
    if not shape or shape[0] <= rows:
        return _simulate_batch(graph, times)
    parts = [
        _simulate_batch(graph, _slice_times(times, i, i + rows)) for i in range(0, shape[0], rows)
    ]
    start = np.concatenate([part.start for part in parts], axis=1)
    return Timeline(
        graph=graph, start=start, end=np.concatenate([part.end for part in parts], axis=1)
    )


def _slice_times(times: StageTimes, low: int, high: int) -> StageTimes:
    def cut(array: Value | float) -> Value | float:
        return array[low:high] if np.ndim(array) == 2 else array  # type: ignore[index]

    return StageTimes(
        forward=np.asarray(cut(times.forward)),
        input_gradient=np.asarray(cut(times.input_gradient)),
        weight_gradient=np.asarray(cut(times.weight_gradient)),
        hop=cut(times.hop),
        blocking_share=times.blocking_share,
        pair_share=times.pair_share,
    )


def _simulate_batch(graph: DependencyGraph, times: StageTimes) -> Timeline:
    seconds = _node_seconds(graph, times)
    lags = _lags(graph, times)
    end = np.zeros((graph.operation.size + 1, *times.shape))
    begins = np.zeros_like(end[:-1])
    levels = graph.levels.tolist()
    waits = graph.waits
    for low, high in pairwise(levels):
        ready = end.take(waits[:, low:high], axis=0)
        if lags is not None:
            ready += lags[:, low:high]
        start = np.maximum.reduce(ready, axis=0, out=begins[low:high])
        np.add(start, seconds[low:high], out=end[low:high])
    return Timeline(graph=graph, start=begins[graph.node], end=end[graph.node])


def _node_seconds(graph: DependencyGraph, times: StageTimes) -> Value:
    """Seconds of every node [node] or [node, layout]."""
    shape = (*times.shape, graph.stages)
    forward, gradient, weight = (
        np.moveaxis(np.broadcast_to(np.asarray(a, float), shape), -1, 0)
        for a in (times.forward, times.input_gradient, times.weight_gradient)
    )
    table = np.stack([forward, gradient + weight, gradient, weight])
    assert [Pass.FORWARD, Pass.BACKWARD, Pass.INPUT, Pass.WEIGHT] == [0, 1, 2, 3]
    own = np.ascontiguousarray(table[graph.kind, graph.stage])
    seconds: Value = own[graph.operation]
    paired = graph.partner >= 0
    if paired.any():
        seconds[paired] += own[graph.partner[paired]]
        seconds[paired] *= times.pair_share
    return seconds


def _lags(graph: DependencyGraph, times: StageTimes) -> Value | None:
    """Seconds between what a node waits for and its start [wait, node, ...]; None when all 0."""
    hop = np.asarray(times.hop, float)
    if not hop.any():
        return None
    inner = max(graph.stages - 1, 0)
    lead = times.shape if hop.ndim == 2 else ()
    hops = np.zeros((inner + 1, *lead))
    hops[:inner] = np.moveaxis(np.broadcast_to(hop, (*lead, inner)), -1, 0)
    lags: Value = hops[graph.crossed_boundary]
    if times.blocking_share:
        lags[0] = times.blocking_share * _blocked_hops(graph, hops)
    return lags[..., None] if times.shape and not lead else lags


def _blocked_hops(graph: DependencyGraph, hops: Value) -> Value:
    """Hops for which a rank stands still between two of its nodes: it sends and it receives."""
    out, into = (
        hops[boundary[graph.operation]]
        + np.where(
            (graph.partner >= 0).reshape(-1, *[1] * (hops.ndim - 1)),
            hops[boundary[graph.partner]],
            0.0,
        )
        for boundary in (graph.sent_boundary, graph.received_boundary)
    )
    padded = np.concatenate([out, np.zeros_like(out[:1])])
    return np.asarray(padded[graph.waits[0]] + into)
