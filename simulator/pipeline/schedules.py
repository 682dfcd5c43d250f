"""Table of pipeline schedules, with their facts and closed forms by the codes of a column.

A plan's column holds the position of its schedule in the table. Nothing follows from that number:
whatever is asked is asked of the schedule's record. Arrays are [row] or [class, row].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from ..base.arrays import Column, Index, Mask, Value, codes_in
from ..base.registry import Codes, Registry
from . import (
    breadth_first,
    chimera,
    dualpipe,
    dualpipe_v,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
    zb_v,
)
from .schedule import Condition, Passes, Placement, Schedule, Sizes, turn_sends

BUILT_IN = (
    one_f_one_b.SCHEDULE,
    interleaved.SCHEDULE,
    gpipe.SCHEDULE,
    naive.SCHEDULE,
    breadth_first.SCHEDULE,
    zb_h1.SCHEDULE,
    zb_h2.SCHEDULE,
    zb_h2.SYNC,
    zb_v.SCHEDULE,
    dualpipe.SCHEDULE,
    dualpipe_v.SCHEDULE,
    chimera.SCHEDULE,
)
"""The schedules of the package, in the order of their codes; others follow."""
DEFAULT_SCHEDULE, DEFAULT_INTERLEAVED = "1f1b", "interleaved"
"""Default schedules of a stack, with one chunk a rank and with several."""


class ScheduleTable(Registry[Schedule]):
    """Schedules by name. Others are added by `register_schedule`, or by an entry point in the group
    plan3d.schedules that names a Schedule."""

    def __init__(self, built_in: tuple[Schedule, ...]) -> None:
        super().__init__("schedule", "plan3d.schedules", {one.name: one for one in built_in})
        self.aliases = {alias: one.name for one in built_in for alias in one.aliases}
        self.rows = built_in
        """Every schedule at the position that is its code."""

    def register(self, name: str, thing: Schedule, aliases: Sequence[str] = ()) -> None:
        """Add a schedule; ValueError where a name is not its own or is taken by another."""
        if name != thing.name:
            raise ValueError(f"schedule {thing.name!r} cannot be registered as {name!r}")
        super().register(name, thing, (*thing.aliases, *aliases))
        self.rows = tuple(self.values())


SCHEDULES = ScheduleTable(BUILT_IN)


def register_schedule(schedule: Schedule) -> None:
    """Add a schedule to the table; ValueError where one of its names is taken by another."""
    SCHEDULES.register(schedule.name, schedule)


SCHEDULE_NAMES = Codes(SCHEDULES)
"""Codes by what people write: names as they were registered, then aliases."""


def schedule_code(name: str) -> int:
    """The code of a schedule that is in the table."""
    return SCHEDULE_NAMES[name]


def default_code(virtual_stages: Any) -> Any:
    """Codes of the default schedules of a stack with so many chunks a rank."""
    one, several = SCHEDULE_NAMES[DEFAULT_SCHEDULE], SCHEDULE_NAMES[DEFAULT_INTERLEAVED]
    return one + (several - one) * (virtual_stages > 1)


def launched_by(framework: str) -> dict[int, str]:
    """What a framework calls the schedules that it runs, by code; the usual ones come last."""
    rows = [(c, s) for c, s in enumerate(SCHEDULES.rows) if framework in s.frameworks]
    special = [row for row in rows if row[1].needs_stages]
    plain = [row for row in reversed(rows) if not row[1].needs_stages]
    return {c: s.frameworks[framework] for c, s in (*special, *plain)}


class ScheduleFact:
    """A number of every record, by the codes of a column or by one code; of AUTO (-1) it is
    `usual`."""

    def __init__(self, of: Callable[[Schedule], int], usual: int = False) -> None:
        self._of, self._usual = of, usual
        self._rows: tuple[Schedule, ...] = ()
        self._numbers = np.empty(0, np.int64)

    def __call__(self, schedule: Any) -> Any:
        if self._rows is not SCHEDULES.rows:
            self._rows = SCHEDULES.rows
            self._numbers = np.array([*map(self._of, self._rows), self._usual])
        found = self._numbers[schedule]
        return found if isinstance(schedule, np.ndarray) else found.item()


placement = ScheduleFact(attrgetter("placement"))
"""The Placement of each schedule."""
model_copies = ScheduleFact(attrgetter("copies"), usual=1)
"""Copies of the model that one pipeline holds."""
least_chunks, most_chunks = (
    ScheduleFact(attrgetter("chunks.least")),
    ScheduleFact(attrgetter("chunks.most")),
)
"""How many chunks a rank may hold."""
looped = ScheduleFact(lambda s: s.placement == Placement.LOOPED, usual=True)
"""Whether chunks are placed in turn."""
defers = ScheduleFact(attrgetter("defers"))
"""Whether weight gradients are deferred."""
pairs = ScheduleFact(attrgetter("pairs"))
"""Whether a rank runs one micro-batch beside another."""
takes_groups = ScheduleFact(attrgetter("groups"))
"""Whether groups of micro-batches may be longer than the pipeline."""
needs_stages = ScheduleFact(attrgetter("needs_stages"))
"""Whether a plan without stages cannot have it."""
idles_by_chunk = ScheduleFact(lambda s: s.idle is None)
"""Whether idle seconds are a chunk of each other rank."""
uneven_paths = ScheduleFact(attrgetter("uneven_paths"))
"""Whether uneven chunks take as long as their longest paths."""
idle_grows = ScheduleFact(attrgetter("idle_grows"), usual=True)
"""Whether longer passes never shorten idle seconds."""
idle_of_first = ScheduleFact(attrgetter("idle_of_first"))
"""Whether a closed form of idle seconds is that of the first rank alone."""
steps_apart = ScheduleFact(attrgetter("steps_apart"))
"""Whether ranks step their optimizer on their own."""
memory_follows_times = ScheduleFact(attrgetter("fills_drain"))
"""Whether how much is held back, and so the peak, depends on how long passes are."""
fuller_inside = ScheduleFact(attrgetter("fuller_inside"))
"""Whether inner ranks keep more micro-batches in flight than outer ones."""
has_turns = ScheduleFact(lambda s: s.turns is not None)
"""Whether ranks wait for sends at turns to their next chunks."""
has_end_sends = ScheduleFact(lambda s: s.end_sends is not None)
"""Whether fewer sends show where the first rank sets the pace."""
forward_first = ScheduleFact(attrgetter("forward_first"))
"""Whether every forward pass comes before the first backward pass."""


@lru_cache(maxsize=8)
def conditions(rows: tuple[Schedule, ...]) -> dict[Condition, Mask]:
    """The conditions of a table, each with which schedules have it, by code; AUTO (-1) has none."""
    each = dict.fromkeys(condition for schedule in rows for condition in schedule.conditions)
    return {one: np.array([*(one in s.conditions for s in rows), False]) for one in each}


def _rows_by_schedule(schedule: Column) -> list[tuple[Schedule, Index | slice]]:
    """The schedules of a column, each with its rows."""
    codes = codes_in(schedule)
    if len(codes) == 1:
        return [(SCHEDULES.rows[codes[0]], slice(None))]
    return [(SCHEDULES.rows[code], np.flatnonzero(schedule == code)) for code in codes]


def _take_sizes(sizes: Sizes[Value], rows: Index | slice) -> Sizes[Value]:
    """The chosen pipelines."""
    return sizes if isinstance(rows, slice) else Sizes(*(part.take(rows) for part in sizes))


def in_flight(schedule: Column, sizes: Sizes[Value], rank: Value) -> Value:
    """Micro-batches whose activations rank r keeps at its peak (Schedule.in_flight)."""
    out = np.empty(np.broadcast_shapes(sizes.m.shape, rank.shape))
    for one, at in _rows_by_schedule(schedule):
        out[..., at] = one.in_flight(_take_sizes(sizes, at), rank[..., at])
    return out


def deferred_weight_gradients(
    schedule: Column, sizes: Sizes[Value], longest: Value, weight_gradient: Value
) -> Value:
    """Weight gradients that rank r holds back, over r [row], of each schedule."""
    out = np.empty(longest.shape)
    for one, at in _rows_by_schedule(schedule):
        of = longest[at], weight_gradient[at]
        out[at] = one.deferred_weight_gradients(_take_sizes(sizes, at), *of)
    return out


def peak_activations(
    schedule: Column, sizes: Sizes[Value], rank: Value, late: Value, a: Value, w: Value
) -> Value:
    """Bytes of activations rank r keeps at its peak [class, row]: A times `in_flight`, or what a
    schedule that defers weight gradients holds (Schedule.peak_bytes); `late` is D [row]."""
    out = in_flight(schedule, sizes, rank) * a
    for one, at in _rows_by_schedule(schedule):
        if one.peak_bytes:
            of = (rank[..., at], late[at], a[..., at], w[..., at])
            out[..., at] = one.peak_bytes(_take_sizes(sizes, at), *of)
    return out


def passes_of_chunks(schedule: Column, sizes: Sizes[Value]) -> Value:
    """Micro-batches' passes in which the gradients of a rank become final, chunk after chunk
    (Schedule.chunk_turn): 1 where it has one chunk.

        (1 + (v - 1) turn) / v
    """
    turn = np.empty(sizes.m.size)
    for one, at in _rows_by_schedule(schedule):
        turn[at] = one.chunk_turn(_take_sizes(sizes, at))
    out: Value = (1 + (sizes.v - 1) * turn) / sizes.v
    return out


def losses_in_flight(schedule: Column, m: Value) -> Value:
    """Micro-batches whose logits wait for the backward pass: all when every forward pass comes
    first, else one."""
    return np.where(forward_first(schedule), m, 1.0)


def idle_seconds(
    schedule: Column,
    sizes: Sizes[Value],
    slowest: Passes,
    others: Passes,
    usual: Value,
    alone: tuple[Passes, Passes] | None = None,
) -> Value:
    """Seconds the slowest rank idles in a step: `usual`, a chunk of each other rank, or the closed
    form of its schedule (Schedule.idle). `others` are all other ranks together; of uneven stages
    their mean stands for each of them. `alone` are both without the communication that ranks wait
    for, where there is any."""
    out = np.empty(slowest.forward.shape)
    for one, at in _rows_by_schedule(schedule):
        passes = slowest.take(at), others.take(at)
        both = (alone[0].take(at), alone[1].take(at)) if alone and one.copies > 1 else None
        read = (*passes, both) if both else passes
        out[..., at] = one.idle(_take_sizes(sizes, at), *read) if one.idle else usual[at]
    return out


def sends_of_turns(
    schedule: Column, sizes: Sizes[Value], passes: tuple[Value | float, Value | float]
) -> Value:
    """Sends that ranks wait for at turns to the next chunk, forward and backward [2, .., row]
    (Schedule.turns); `passes` are how many take as long as a forward and a backward pass."""
    each = [np.broadcast_to(n, np.broadcast_shapes(np.shape(n), sizes.m.shape)) for n in passes]
    out = np.zeros((2, *np.broadcast_shapes(each[0].shape, each[1].shape)))
    for one, at in _rows_by_schedule(schedule):
        if one.turns:
            of = _take_sizes(sizes, at)
            for way, group, own in zip(out, one.turns(of), each, strict=True):
                way[..., at] = turn_sends(of, group, own[..., at]) * (of.p > 1)
    return out


def sends(
    schedule: Column,
    sizes: Sizes[Value],
    overlapped: Value,
    contention: float = 0.0,
    slack: Value | float = 0.0,
    passes: tuple[Value | float, Value | float] = (np.inf, np.inf),
) -> Value:
    """Sends on the critical path of a step, each one boundary tensor.

        hidden + turns + steady (1 - overlapped (1 - contention))

    of Schedule.hidden_sends, Schedule.turns and Schedule.steady_sends; none without stages. So the
    exposed volume lies between one micro-batch's and the whole batch's boundary activations.
    `slack` is how many hide in the time by which the first rank works longest, down to
    Schedule.end_sends, `passes` how many take as long as a forward and a backward pass of a chunk.
    """
    hidden, steady, end_hidden, end_steady = np.empty((4, sizes.m.size))
    for one, at in _rows_by_schedule(schedule):
        of = _take_sizes(sizes, at)
        hidden[at], steady[at] = one.hidden_sends(of), one.steady_sends(of)
        ends = one.end_sends(of) if one.end_sends else (hidden[at], steady[at])
        end_hidden[at], end_steady[at] = ends
    shown, turns = 1 - overlapped * (1 - contention), sum(sends_of_turns(schedule, sizes, passes))
    usual, at_end = hidden + turns + steady * shown, end_hidden + turns + end_steady * shown
    out: Value = np.maximum(usual - slack, np.minimum(at_end, usual)) * (sizes.p > 1)
    return out
