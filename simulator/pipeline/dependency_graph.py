"""Dependencies of a pipeline: the operations of a schedule, in levels that can run at once.

An operation waits for the one before it on its rank, and for the stage whose result it needs.
A level is a wavefront: what can be timed once all earlier levels are. Deadlocks are found here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..base.arrays import Column
from ..base.errors import InputError
from .operation_orders import LETTERS, Operations, Pass
from .schedule import Schedule

MOST_PASSES = 1_000_000
"""Forward passes of the largest graph; it takes some seconds to make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyGraph:
    """One schedule of p ranks: its operations by rank, in their order, and what each waits for.

    Operations that run together are one *node*; nodes are numbered level by level, and the
    number after the last stands for the start of the step.
    """

    schedule: Schedule | None
    """None for orders of one's own."""
    ranks: int
    stages: int
    micro_batches: int
    kind: Column
    """Pass of each operation [operation]."""
    stage: Column
    micro_batch: Column
    rank: Column
    source: Column
    """The operation whose result it needs; -1 for none [operation]."""
    received_boundary: Column
    """The boundary its input crosses, between stages i and i + 1; -1 for none [operation]."""
    sent_boundary: Column
    """The boundary its result crosses; -1 for none [operation]."""
    node: Column
    """The node of each operation [operation]."""
    operation: Column
    """The first operation of each node [node]."""
    partner: Column
    """The operation that runs together with it; -1 for none [node]."""
    waits: Column
    """Nodes that a node waits for: its rank's last, and its inputs [wait, node]."""
    crossed_boundary: Column
    """The boundary that each of them comes across; -1 for none [wait, node]."""
    levels: Column
    """Where each level begins among the nodes, and their number at the end."""

    @property
    def operations(self) -> int:
        return self.kind.size


def forward_passes(ranks: int, virtual: int, micro_batches: int) -> int:
    """Forward passes of a step."""
    return ranks * virtual * micro_batches


@lru_cache(maxsize=32)
def graph(
    schedule: Schedule,
    ranks: int,
    virtual: int,
    micro_batches: int,
    group: int = 0,
    held_back: float = 0,
) -> DependencyGraph:
    """The graph of a schedule (arguments of Schedule.orders).

    Raises InputError when the orders wait for each other in a circle, saying who waits for what,
    and for more than MOST_PASSES.
    """
    if forward_passes(ranks, virtual, micro_batches) > MOST_PASSES:
        most = MOST_PASSES // (ranks * virtual)
        raise InputError(
            f"{micro_batches:,} micro-batches are more than can be simulated; at most {most:,} of "
            f"{ranks * virtual} stages"
        )
    each = schedule.orders(ranks, virtual, micro_batches, group, held_back)
    return graph_of_orders(each, ranks * virtual, schedule)


def graph_of_orders(
    each: list[Operations], stages: int, schedule: Schedule | None = None
) -> DependencyGraph:
    """The graph of any orders in which every pass of every micro-batch appears once."""
    rows = np.concatenate(each)
    rank = np.repeat(np.arange(len(each)), [len(o) for o in each])
    done = _results(rows, stages)
    source, received = _sources(rows, rank, done, stages)
    node, first, partner = _nodes(rows[:, 3])
    waits, crossed = _waits(rank, first, partner, source, received, node)
    levels = _levels(waits, np.searchsorted(rank[first], np.arange(len(each) + 1)))
    if sum(level.size for level in levels) < first.size:
        raise InputError(_deadlock_message(schedule, levels, rows, rank, first, source))
    order = np.concatenate(levels)
    place = _node_places(order)
    return DependencyGraph(
        schedule=schedule,
        ranks=len(each),
        stages=stages,
        micro_batches=done.shape[2],
        kind=rows[:, 0],
        stage=rows[:, 1],
        micro_batch=rows[:, 2],
        rank=rank,
        source=source,
        received_boundary=received,
        sent_boundary=_sent_boundaries(rows, rank, done, stages),
        node=place[node],
        operation=first[order],
        partner=partner[order],
        waits=np.ascontiguousarray(place[waits[:, order]]),
        crossed_boundary=np.ascontiguousarray(crossed[:, order]),
        levels=np.cumsum([0, *(level.size for level in levels)]),
    )


def _node_places(order: Column) -> Column:
    """Where each node comes in the order; the start of the step stays last."""
    place = np.append(np.empty_like(order), order.size)
    place[order] = np.arange(order.size)
    return place


def _nodes(together: Column) -> tuple[Column, Column, Column]:
    """The node of each operation; the first operation of each node and its partner or -1."""
    second = np.concatenate([[False], together[:-1] == 1])
    node = np.cumsum(~second) - 1
    first = np.flatnonzero(~second)
    partner = np.full(first.size, -1)
    partner[node[second]] = np.flatnonzero(second)
    return node, first, partner


def _results(rows: Operations, stages: int) -> Column:
    """The operation that gives each result: outputs and input gradients [2, stage, micro]."""
    kind, stage, micro, _ = rows.T
    done = np.full((2, stages, int(micro.max()) + 1), -1)
    at = np.flatnonzero(kind != Pass.WEIGHT)
    done[(kind[at] != Pass.FORWARD).astype(int), stage[at], micro[at]] = at
    assert (done >= 0).all(), "a pass is missing"
    return done


def _sources(rows: Operations, rank: Column, done: Column, stages: int) -> tuple[Column, Column]:
    kind, stage, micro, _ = rows.T
    forward, weight = kind == Pass.FORWARD, kind == Pass.WEIGHT
    last = (stage == stages - 1) & ~forward & ~weight
    beside = np.where(forward, stage - 1, np.where(last | weight, stage, stage + 1))
    source = done[np.where(forward | last, 0, 1), beside, micro]
    source = np.where(forward & (stage == 0), -1, source)
    boundary = np.where(forward, stage - 1, stage)
    remote = (source >= 0) & (rank[source] != rank)
    return source, np.where(remote, boundary, -1)


def _sent_boundaries(rows: Operations, rank: Column, done: Column, stages: int) -> Column:
    kind, stage, micro, _ = rows.T
    forward, weight = kind == Pass.FORWARD, kind == Pass.WEIGHT
    to = np.where(forward, stage + 1, stage - 1)
    inside = (to >= 0) & (to < stages) & ~weight
    receiver = done[np.where(forward, 0, 1), np.where(inside, to, 0), micro]
    remote = inside & (rank[receiver] != rank)
    return np.where(remote, np.minimum(stage, to), -1)


def _waits(
    rank: Column, first: Column, after: Column, source: Column, received: Column, node: Column
) -> tuple[Column, Column]:
    nodes = first.size
    before = np.arange(-1, nodes - 1)
    before[(np.diff(rank[first], prepend=-1) != 0)] = nodes
    inputs = [first] if (after < 0).all() else [first, after]
    waits, crossed = [before], [np.full(nodes, -1)]
    for operations in inputs:
        from_ = np.where(operations >= 0, source[operations], -1)
        waits.append(np.where(from_ >= 0, node[from_], nodes))
        crossed.append(np.where(operations >= 0, received[operations], -1))
    return np.stack(waits), np.stack(crossed)


def _levels(waits: Column, begins: Column) -> list[Column]:
    """Nodes by the round in which they can run; short of some when the others never can."""
    done = np.zeros(waits.shape[1] + 1, bool)
    done[-1] = True
    head, end = begins[:-1].copy(), begins[1:]
    inputs = waits[1:]
    levels = []
    alive = np.flatnonzero(head < end)
    while alive.size:
        at = head[alive]
        ready = done[inputs[:, at]].all(axis=0)
        level = at[ready]
        if not level.size:
            break
        done[level] = True
        levels.append(level)
        head[alive[ready]] += 1
        alive = alive[head[alive] < end[alive]]
    return levels


def _deadlock_message(
    schedule: Schedule | None,
    levels: list[Column],
    rows: Operations,
    rank: Column,
    first: Column,
    source: Column,
) -> str:
    """Message of a deadlock: which ranks wait, and for what."""
    ran = set(np.concatenate([np.empty(0, np.int64), *levels]).tolist())
    stuck: dict[int, int] = {}
    for node, operation in enumerate(first.tolist()):
        if node not in ran:
            stuck.setdefault(int(rank[operation]), operation)
    waits = [
        f"rank {r} waits at {_pass_name(rows[o])} for {_pass_name(rows[source[o]])} of rank "
        f"{rank[source[o]]}"
        for r, o in list(stuck.items())[:2]
    ]
    name = schedule.name if schedule else "this"
    return f"deadlock: the {name} order cannot run: {'; '.join(waits)}"


def _pass_name(row: Operations) -> str:
    """'F(3) of stage 2' for the forward pass of micro-batch 3."""
    return f"{LETTERS[row[0]]}({row[2]}) of stage {row[1]}"
