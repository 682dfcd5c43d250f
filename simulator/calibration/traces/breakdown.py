"""Breakdown of traced steps of one rank: every moment belongs to one part or to one gap.

    wall = sum of parts + sum of gaps

A moment in which kernels of compute run is theirs, of the first of COMPUTE where several run; one
in which only collectives run is exposed communication; then come copies to and from the host; what
is left are gaps, by what the GPU waits for. Unions of intervals, never sums. Seconds a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...base.arrays import Index, Value
from ...base.errors import InputError
from .groups import AXES, Sizes, axis_of
from .intervals import NOTHING, Intervals, covered, gaps, length, overlap, union, without
from .kernels import COMMUNICATION, OTHER, class_of, part_of
from .reader import RECOMPUTE_PASS, UNKNOWN_PASS, UPDATE_PASS, Kernel, RankTrace

KERNELS = ("matmul", "attention", "memory_bound")
COMPUTE = (*KERNELS, "recompute", "optimizer", OTHER)
"""Parts of compute, in the order in which moments are theirs."""
PARTS = (*COMPUTE, *AXES, "host_comm")
HOST, LOADING, QUEUED, UNKNOWN, UPDATE = "host", "data loading", "queued", "unknown", "update"
GAPS = (HOST, LOADING, QUEUED, UPDATE, UNKNOWN)
"""Causes of gaps: the host launches late; it loads data meanwhile; launched kernels start late; the
host works between kernels of the optimizer; the trace does not say what was launched when."""

TIE = 1e-3
"""Weight of idle time against busy time in the choice of a layer."""


class Window(NamedTuple):
    """The steps of a rank that are broken down."""

    low: float
    high: float
    steps: int
    marked: bool
    """Whether the trace marks them."""


class KernelUse(NamedTuple):
    """What one kind of kernel takes of a step."""

    part: str
    kernel: Kernel
    launches: float
    seconds: float
    """Sum over its launches."""


class CollectiveUse(NamedTuple):
    """One operation of one axis in a step."""

    axis: str
    operation: str
    launches: float
    seconds: float
    """In which it runs."""
    exposed: float
    """Of them, in which no kernel of compute runs."""


@dataclass(frozen=True, eq=False)
class RankBreakdown:
    """The traced steps of one rank."""

    trace: RankTrace
    window: Window
    sizes: Sizes

    @cached_property
    def rows(self) -> Index:
        """Events that run within the window."""
        low, high = self.window.low, self.window.high
        return np.flatnonzero((self.trace.end > low) & (self.trace.start < high))

    @cached_property
    def spans(self) -> tuple[Value, Value]:
        """Starts and ends of those events within the window."""
        low, high = self.window.low, self.window.high
        start, end = self.trace.start[self.rows], self.trace.end[self.rows]
        return np.maximum(start, low), np.minimum(end, high)

    @cached_property
    def kind_parts(self) -> tuple[list[str], list[str]]:
        """The part of every kind of kernel inside the optimizer's step and outside of it."""
        inside, outside = [], []
        for kernel in self.trace.kinds:
            axis = None
            if class_of(kernel).part == COMMUNICATION:
                axis = axis_of(kernel, self.sizes)
            inside.append(axis or part_of(kernel, UPDATE_PASS))
            outside.append(axis or part_of(kernel, 0))
        return inside, outside

    @cached_property
    def part(self) -> Value:
        """Index into PARTS of those events."""
        inside, outside = (
            np.array([PARTS.index(name) for name in names], int) for names in self.kind_parts
        )
        kind, phase = self.trace.kind[self.rows], self.trace.phase[self.rows]
        out = np.where(phase == UPDATE_PASS, inside[kind], outside[kind])
        again = (phase == RECOMPUTE_PASS) & (out < len(KERNELS))
        return np.where(again, PARTS.index("recompute"), out)

    @cached_property
    def unions(self) -> dict[str, Intervals]:
        """When each part runs."""
        start, end = self.spans
        return {
            name: union(start[self.part == i], end[self.part == i]) for i, name in enumerate(PARTS)
        }

    @cached_property
    def compute(self) -> Intervals:
        """When kernels of compute run."""
        both = np.concatenate([self.unions[name] for name in COMPUTE], axis=1)
        return union(both[0], both[1])

    @cached_property
    def exclusive(self) -> dict[str, Intervals]:
        """The moments of each part; no moment is of two."""
        taken, out = NOTHING, {}
        for name in PARTS:
            out[name] = without(self.unions[name], taken)
            both = np.concatenate([taken, self.unions[name]], axis=1)
            taken = union(both[0], both[1])
        return out

    @property
    def wall(self) -> float:
        """Seconds of a step."""
        return (self.window.high - self.window.low) / self.window.steps

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds of each of PARTS."""
        return {name: length(own) / self.window.steps for name, own in self.exclusive.items()}

    @property
    def busy(self) -> float:
        """Seconds in which the GPU runs anything."""
        return sum(self.seconds.values())

    @property
    def classified(self) -> float:
        """Share of the busy time whose kernels the table names."""
        unknown = [class_of(kernel).name == "unknown" for kernel in self.trace.kinds]
        rows = np.array(unknown, bool)[self.trace.kind[self.rows]]
        start, end = self.spans
        named = length(union(start[~rows], end[~rows]))
        return named / max(length(union(start, end)), 1e-300)

    @cached_property
    def gap_intervals(self) -> Intervals:
        """When nothing runs."""
        start, end = self.spans
        return gaps(union(start, end), self.window.low, self.window.high)

    @cached_property
    def gaps(self) -> dict[str, float]:
        """Seconds of gaps by GAPS.

        Up to the launch of the next kernel the host is late; then the kernel is queued.
        """
        free, out = self.gap_intervals, dict.fromkeys(GAPS, 0.0)
        if not free.shape[1]:
            return out
        begin, end = free
        start = self.trace.start
        following = np.searchsorted(start, end - 1e-9)
        last = following >= start.size
        following = np.minimum(following, start.size - 1)
        launched = np.where(last, end, self.trace.launched[following])
        late = np.clip(np.nan_to_num(launched, nan=-np.inf) - begin, 0.0, end - begin)
        loading = overlap(begin, begin + late, self.trace.loading)
        update = (self.trace.phase[following] == UPDATE_PASS) & ~last
        unknown = np.isnan(launched)
        causes = {
            LOADING: loading,
            UPDATE: np.where(update, end - begin - loading, 0.0),
            UNKNOWN: np.where(unknown, end - begin, 0.0),
            HOST: np.where(update | unknown, 0.0, late - loading),
            QUEUED: np.where(update | unknown, 0.0, end - begin - late),
        }
        return {name: float(causes[name].sum()) / self.window.steps for name in GAPS}

    @cached_property
    def slowest_layer(self) -> Intervals:
        """Start and end of the layer that keeps the GPU busy longest, of like ones the shortest
        [2, 1]: from the end of an attention to that of the next in the same pass, with matrix
        products between; none where no two follow each other, or the GPU mostly waits."""
        start, end = self.spans
        attention, phase = self.part == PARTS.index("attention"), self.trace.phase[self.rows]
        layers = NOTHING
        for one in np.unique(phase[attention]).tolist():
            mine = attention & (phase == one)
            _, moments = union(start[mine], end[mine])
            others = start[(phase != one) & (phase != UNKNOWN_PASS)]
            alone = np.diff(np.searchsorted(np.sort(others), moments)) == 0
            spans = np.stack([moments[:-1], moments[1:]])[:, alone]
            spans = spans[:, overlap(spans[0], spans[1], self.unions["matmul"]) > 0]
            layers = np.concatenate([layers, spans], axis=1)
        if not layers.shape[1]:
            return NOTHING
        idle = overlap(layers[0], layers[1], self.gap_intervals)
        busy = layers[1] - layers[0] - idle
        longest = int(np.where(busy > idle, busy - TIE * idle, 0.0).argmax())
        return layers[:, longest : longest + 1] if busy[longest] > idle[longest] else NOTHING

    @cached_property
    def collectives(self) -> list[CollectiveUse]:
        """Operations of every axis, the longest first."""
        start, end = self.spans
        kind, steps, out = self.trace.kind[self.rows], self.window.steps, []
        names = np.array([class_of(kernel).name for kernel in self.trace.kinds])
        for axis in AXES:
            mine = self.part == PARTS.index(axis)
            for operation in np.unique(names[kind[mine]]).tolist():
                rows = mine & (names[kind] == operation)
                runs = union(start[rows], end[rows])
                exposed = length(without(runs, self.compute)) / steps
                launches = float(rows.sum()) / steps
                out.append(CollectiveUse(axis, operation, launches, length(runs) / steps, exposed))
        return sorted(out, key=lambda one: -one.seconds)

    @cached_property
    def kernels(self) -> list[KernelUse]:
        """Kinds of kernels, the longest first."""
        start, end = self.spans
        kinds = len(self.trace.kinds)
        key = self.part * kinds + self.trace.kind[self.rows]
        seconds = np.bincount(key, end - start, len(PARTS) * kinds) / self.window.steps
        count = np.bincount(key, minlength=len(PARTS) * kinds) / self.window.steps
        order = np.argsort(-seconds, kind="stable")
        return [
            KernelUse(
                PARTS[i // kinds], self.trace.kinds[i % kinds], float(count[i]), float(seconds[i])
            )
            for i in order.tolist()
            if count[i]
        ]

    def exposed_wait(self, start: Value, end: Value, axis: str) -> float:
        """Seconds of a step that waits take of the exposed moments of an axis."""
        waits = union(start, end)
        own = self.exclusive[axis]
        if not own.shape[1] or not waits.shape[1]:
            return 0.0
        return float((covered(own[1], waits) - covered(own[0], waits)).sum()) / self.window.steps


def common_steps(traces: Sequence[RankTrace]) -> list[str]:
    """Names of the steps that all ranks mark; none where none marks any. InputError where ranks
    mark different ones."""
    marked = [{name for name, _, _ in one.steps} for one in traces]
    if not any(marked):
        return []
    shared = set.intersection(*marked)
    if not shared:
        one, other = marked[0], next(names for names in marked if not names & marked[0])
        at = marked.index(other)
        raise InputError(
            f"{traces[at].source}: marks {_listed(other)} and {traces[0].source} {_listed(one)}: "
            "give traces of the same steps"
        )
    return [name for name, _, _ in traces[0].steps if name in shared]


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:2]) if names else "no step"


def window_of(trace: RankTrace, names: Sequence[str]) -> Window:
    """The steps of these names, from the end of what was launched before them to that of what they
    launched; all of the trace where none are marked."""
    chosen = [(low, high) for name, low, high in trace.steps if name in names]
    if not (trace.end > trace.start).any():
        raise InputError(f"{trace.source}: all of its {trace.start.size:,} kernels take no time")
    if not chosen:
        return Window(float(trace.start.min()), float(trace.end.max()), 1, False)
    low, high = chosen[0][0], chosen[-1][1]
    moment = trace.start
    if trace.marked_by_host:
        moment = np.where(np.isnan(trace.launched), trace.start, trace.launched)
    earlier, own = trace.end[moment < low], trace.end[(moment >= low) & (moment < high)]
    if not own.size:
        raise InputError(f"{trace.source}: no kernel runs in {names[0]}")
    last = float(own.max())
    begin = max(low, float(earlier.max())) if earlier.size else low
    return Window(begin if begin < last else low, max(high, last), len(chosen), True)


def break_down(trace: RankTrace, names: Sequence[str], sizes: Sizes | None = None) -> RankBreakdown:
    """The breakdown of the steps of these names of one rank."""
    return RankBreakdown(trace, window_of(trace, names), sizes or Sizes())
