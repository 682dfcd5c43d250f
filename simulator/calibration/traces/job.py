"""A traced job: the breakdowns of its ranks together, with transfer and wait told apart.

A collective ends on all ranks at once, so that the shortest of its kernels, that of the rank that
arrives last, is its transfer; what the others take longer, they wait. One rank tells an upper bound
of both alone. The straggler is the rank whose own work, whatever is no communication, takes longest
beside ranks of the same pipeline stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...base.arrays import Index, Value
from ...base.errors import InputError
from .breakdown import (
    COMPUTE,
    GAPS,
    UNKNOWN,
    CollectiveUse,
    KernelUse,
    RankBreakdown,
    break_down,
    common_steps,
)
from .groups import AXES, PIPELINE, Sizes
from .intervals import Intervals, length
from .kernels import class_of
from .reader import RankTrace

STRAGGLES = 0.01
"""Share of a step by which a rank's own work is longer than its peers' to be called a straggler."""


@dataclass(frozen=True)
class Straggler:
    """A rank for which others wait."""

    rank: int
    stage: int | None
    share: float
    """By which its own work is longer than the median of its peers."""
    seconds: float
    """The same a step."""
    cause: str
    """The part or gap that is longer most."""


@dataclass(frozen=True, eq=False)
class TracedJob:
    """Traced ranks of one job, with a step in common."""

    ranks: tuple[RankBreakdown, ...]
    sizes: Sizes

    @property
    def wall(self) -> float:
        """Seconds of a step: of the slowest rank."""
        return max(one.wall for one in self.ranks)

    @property
    def steps(self) -> int:
        return self.ranks[0].window.steps

    @property
    def is_lone_rank(self) -> bool:
        """Whether one rank was traced of a job of several."""
        one = self.ranks[0].trace
        return len(self.ranks) == 1 and max(one.ranks or 1, self.sizes.ranks) > 1

    def _mean(self, values: list[dict[str, float]]) -> dict[str, float]:
        return {name: float(np.mean([one[name] for one in values])) for name in values[0]}

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds of a step of each of PARTS, mean over the ranks."""
        return self._mean([one.seconds for one in self.ranks])

    @cached_property
    def gaps(self) -> dict[str, float]:
        """Seconds of gaps of a step by cause, mean over the ranks; ranks that are done before the
        slowest wait for it."""
        out = self._mean([one.gaps for one in self.ranks])
        out[UNKNOWN] += self.wall - float(np.mean([one.wall for one in self.ranks]))
        return out

    @cached_property
    def classified(self) -> float:
        """Share of the busy time whose kernels are named."""
        busy = np.array([one.busy for one in self.ranks])
        named = np.array([one.classified for one in self.ranks])
        return float((named * busy).sum() / max(float(busy.sum()), 1e-300))

    @cached_property
    def collectives(self) -> list[CollectiveUse]:
        """Operations of every axis, mean over the ranks, the longest first."""
        rows: dict[tuple[str, str], list[CollectiveUse]] = {}
        for one in self.ranks:
            for use in one.collectives:
                rows.setdefault((use.axis, use.operation), []).append(use)
        out = [
            CollectiveUse(
                *key, *(sum(getattr(u, n) for u in uses) / len(self.ranks) for n in _NUMBERS)
            )
            for key, uses in rows.items()
        ]
        return sorted(out, key=lambda use: -use.seconds)

    @cached_property
    def kernels(self) -> list[KernelUse]:
        """Kinds of kernels of the first rank, the longest first."""
        return self.ranks[0].kernels

    @cached_property
    def stages(self) -> list[int | None]:
        """The pipeline stage of each rank: from the ranks of its pipeline group, else from its
        number; None where neither says it."""
        return [_stage(one, self.sizes) for one in self.ranks]

    @cached_property
    def _wait_spans(self) -> list[Spans] | None:
        """When each rank waits in a collective; None where no two ranks of a group were traced."""
        return _wait_spans(self.ranks)

    @cached_property
    def compared_axes(self) -> set[str]:
        """Axes in which several traced ranks tell the transfer from the wait."""
        return {axis for spans in self._wait_spans or [] for axis in spans}

    @cached_property
    def waits(self) -> dict[str, float] | None:
        """Exposed seconds of a step in which ranks wait for others, by axis, mean over the ranks;
        None where only one rank of every group was traced."""
        if self._wait_spans is None:
            return None
        out = dict.fromkeys(AXES, 0.0)
        for one, waiting in zip(self.ranks, self._wait_spans, strict=True):
            for axis, (start, end) in waiting.items():
                out[axis] += one.exposed_wait(start, end, axis) / len(self.ranks)
        return out

    @property
    def bubble(self) -> float | None:
        """Seconds of a step in which ranks of a pipeline wait for others, mean over the ranks; None
        where that was not measured."""
        if self.waits is None or self.sizes.pp == 1:
            return None
        return self.waits[PIPELINE] + self.gaps[UNKNOWN]

    @cached_property
    def straggler(self) -> Straggler | None:
        """The rank whose own work is longest beside its peers; None where none stands out."""
        if len(self.ranks) < 2:
            return None
        parts = [{**one.seconds, **one.gaps} for one in self.ranks]
        own = [sum(one[name] for name in _OWN) for one in parts]
        out = None
        for stage in set(self.stages):
            peers = [i for i, other in enumerate(self.stages) if other == stage]
            if len(peers) < 2:
                continue
            slowest = max(peers, key=lambda i: own[i])
            others = [i for i in peers if i != slowest]
            usual = float(np.median([own[i] for i in others]))
            longer = own[slowest] - usual
            if longer < STRAGGLES * self.wall or not usual or (out and longer <= out.seconds):
                continue
            rest = {n: float(np.median([parts[i][n] for i in others])) for n in _OWN}
            cause = max(_OWN, key=lambda name: parts[slowest][name] - rest[name])
            rank = self.ranks[slowest].trace.rank
            number = slowest if rank is None else rank
            out = Straggler(number, stage, longer / usual, longer, cause)
        return out

    @property
    def slowest_layer(self) -> tuple[RankBreakdown, Intervals]:
        """The rank of the layer that takes longest, and when it runs."""
        slowest = max(self.ranks, key=lambda one: length(one.slowest_layer))
        return slowest, slowest.slowest_layer

    @property
    def left_out(self) -> list[str]:
        """What of the files was not used."""
        texts = (f"{one.trace.source}: {text}" for one in self.ranks for text in one.trace.left_out)
        return [*dict.fromkeys(texts)]

    @property
    def is_whole(self) -> bool:
        """Whether the files hold all that the ranks ran."""
        return all(one.trace.is_whole for one in self.ranks)


_NUMBERS = ("launches", "seconds", "exposed")
_OWN = (*COMPUTE, "host_comm", *(name for name in GAPS if name != UNKNOWN))
"""What a rank takes without waiting for another."""


def traced_job(traces: Sequence[RankTrace], sizes: Sizes | None = None) -> TracedJob:
    """The traced ranks of one job. InputError for ranks of different steps, or of more ranks than
    the plan has."""
    for one in traces:
        if sizes is not None and one.ranks not in (None, sizes.ranks):
            raise InputError(
                f"{one.source}: is of a job of {one.ranks:,} ranks, the plan has {sizes.ranks:,}"
            )
    sizes = sizes or Sizes()
    names = common_steps(traces)
    return TracedJob(tuple(break_down(one, names, sizes) for one in traces), sizes)


def _stage(one: RankBreakdown, sizes: Sizes) -> int | None:
    """The pipeline stage of a rank."""
    if sizes.pp == 1:
        return 0
    rank = one.trace.rank
    axes, _ = one.kind_parts
    for kernel, axis in zip(one.trace.kinds, axes, strict=True):
        members = kernel.collective.ranks
        if axis == PIPELINE and rank in members and len(members) == sizes.pp:
            return members.index(rank)
    if rank is not None and one.trace.ranks == sizes.ranks:
        return sizes.stage(rank)
    return None


Spans = dict[str, tuple[Value, Value]]
"""Starts and ends of waits by axis."""


def _wait_spans(ranks: Sequence[RankBreakdown]) -> list[Spans] | None:
    """When each rank waits in a collective; None where no two ranks of a group were traced."""
    groups: dict[tuple[object, ...], dict[int, Index]] = {}
    sends: dict[tuple[object, ...], dict[int, Index]] = {}
    for number, one in enumerate(ranks):
        inside, _ = one.kind_parts
        kind = one.trace.kind[one.rows]
        by_group: dict[tuple[object, ...], list[int]] = {}
        for i, (kernel, axis) in enumerate(zip(one.trace.kinds, inside, strict=True)):
            if axis not in AXES:
                continue
            about, operation = kernel.collective, class_of(kernel).name
            key: tuple[object, ...] = (axis, operation, about.ranks or about.group)
            if operation == "send_recv" and (about.elements or axis == PIPELINE):
                key = (axis, operation, about.elements)
            elif not key[-1]:
                continue
            by_group.setdefault(key, []).append(i)
        for key, kinds in by_group.items():
            rows = np.flatnonzero(np.isin(kind, kinds))
            (sends if key[1] == "send_recv" else groups).setdefault(key, {})[number] = rows
    out: list[dict[str, list[tuple[Value, Value]]]] = [{} for _ in ranks]
    matched = False
    for key, members in groups.items():
        counts = {rows.size for rows in members.values()}
        if len(members) < 2 or len(counts) > 1:
            continue
        matched = True
        long = np.stack([_durations(ranks[n], rows) for n, rows in members.items()])
        for n, rows in members.items():
            _add_waits(out[n], str(key[0]), ranks[n], rows, long.min(axis=0))
    for key, members in sends.items():
        if len(members) < 2:
            continue
        matched = True
        every = np.concatenate([_durations(ranks[n], rows) for n, rows in members.items()])
        for n, rows in members.items():
            _add_waits(out[n], str(key[0]), ranks[n], rows, every.min())
    if not matched:
        return None
    return [
        {
            axis: (np.concatenate([a for a, _ in s]), np.concatenate([b for _, b in s]))
            for axis, s in one.items()
        }
        for one in out
    ]


def _durations(one: RankBreakdown, rows: Index) -> Value:
    start, end = one.spans
    out: Value = end[rows] - start[rows]
    return out


def _add_waits(
    waits: dict[str, list[tuple[Value, Value]]],
    axis: str,
    one: RankBreakdown,
    rows: Index,
    transfer: Value,
) -> None:
    """A kernel first waits, then transfers."""
    start, end = one.spans
    waits.setdefault(axis, []).append((start[rows], end[rows] - transfer))
