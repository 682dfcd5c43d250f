"""The variables of a staged plan: their places in a point, and what a move changes.

A point is the number of stages, of micro-batches, and for each stage, in this order: where it ends
(layers from an even cut), tp, the ZeRO stage and how much of it recomputes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Index, Mask
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.plan.layer_runs import ABSENT, Segments

from .problem import NOTHING, Points, Random

Table = NDArray[np.int64]

WINDOW = 4
"""Layers that a stage may end before or after an even cut."""
EIGHTHS = 8
"""Parts of a stage's layers that change how they recompute at once: first from not at all to the
next of MODES that there is, one eighth after another, then to the one after it."""
ALONE, SIDE = 0.4, 0.7
"""Share of moves of one stage alone; chance of others to take along all before it, or after it."""
STRIDES = (1, 2, 4, 8)
"""Eighths by which recompute changes in a move."""
MODES = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
"""Recompute from light to heavy."""
PP, MICRO_BATCHES, FIRST = range(3)
"""Places of the variables of the whole plan, and of the first stage's first."""
CUT, TP, ZERO, RECOMPUTE, EACH = range(5)
"""Places of a stage's variables, and how many there are."""


def place_of(stage: int, field: int) -> int:
    """The place of a stage's variable in a point."""
    return FIRST + EACH * stage + field


def stage_of(variable: Index) -> tuple[Index, Index]:
    """The stage and the field of variables; NOTHING and NOTHING of those of the whole plan."""
    stage, field = np.divmod(variable - FIRST, EACH)
    whole = variable < FIRST
    return np.where(whole, NOTHING, stage), np.where(whole, NOTHING, field)


def heavier(share: Table, layers: Table) -> Table:
    """Layers of a stage that recompute more than the others: so many eighths, rounded."""
    eighths = share - EIGHTHS * (np.maximum(share - 1, 0) // EIGHTHS)
    out: Table = (eighths * layers + EIGHTHS // 2) // EIGHTHS
    return out


def distinct_shares(layers: Table, modes: int) -> Mask:
    """Eighths [row, share] of which no smaller one recomputes the same, in so many modes."""
    share = np.arange((modes - 1) * EIGHTHS + 1)
    more = heavier(share, layers[:, None])
    fresh: Mask = np.diff(more, axis=1, prepend=-1) > 0
    first = share[1:] % EIGHTHS == 1
    fresh[:, 1:][:, first] = more[:, 1:][:, first] > 0
    return fresh


def moved(
    points: Points, variable: Index, index: Index, last: Index, random: Random
) -> tuple[Points, Mask]:
    """Points with one variable changed to an index, or further that way, and those that went along
    with it; and which rows changed in every stage up to the `last` [row].

    In some moves the variable changes in one stage, in others in all before it, after it, or both.
    """
    rows, (stage, field) = np.arange(len(points)), stage_of(variable)
    far = np.where(field == RECOMPUTE, random.choice(STRIDES, rows.size), 1)
    shift = far * (index - points[rows, variable])
    out = _lengthened(points, last)
    alone = random.random(rows.size) < ALONE
    before, after = random.random((2, rows.size)) < SIDE
    low, high = np.where(before, 0, stage), np.where(after, last, stage)
    others = np.arange((points.shape[1] - FIRST) // EACH)
    along = ~alone[:, None] & (low[:, None] <= others) & (others <= high[:, None])
    along = (along | (others == stage[:, None])) & (stage != NOTHING)[:, None]
    row, other = np.nonzero(along)
    out[row, FIRST + EACH * other + field[row]] += shift[row]
    whole = np.flatnonzero(stage == NOTHING)
    out[whole, variable[whole]] += shift[whole]
    return out, ~alone & (low == 0) & (high == last) & (stage != NOTHING)


def _lengthened(points: Points, last: Index) -> Points:
    """Points whose missing stages are like their `last` one, but where it ends."""
    out = points.copy()
    stages = out[:, FIRST:].reshape(len(out), -1, EACH)
    there = np.minimum(np.arange(stages.shape[1]), last[:, None])
    stages[:] = np.take_along_axis(stages, there[:, :, None], axis=1)
    return out


def packed(runs: Table) -> Segments:
    """Segments of columns [field, row, run] with the runs that are there first."""
    order = np.argsort(runs[0] == ABSENT, axis=1, kind="stable")
    width = int((runs[0] != ABSENT).sum(axis=1).max())
    columns = [np.take_along_axis(column, order, axis=1)[:, :width] for column in runs]
    absent = columns[0] == ABSENT
    return Segments(*(np.where(absent, ABSENT, column) for column in columns))


def layouts(even: list[int], shares: list[int]) -> int:
    """Ways to cut the layers and to choose how much recomputes, over all stages: `even` has the
    ends of stages in an even cut, `shares` how many ways a stage of so many layers has."""
    layers = even[-1]
    ways: dict[int, int] = {0: 1}
    for left, end in zip(reversed(range(len(even))), even, strict=True):
        new: dict[int, int] = {}
        for at in range(end - WINDOW, end + WINDOW + 1) if left else [layers]:
            for begin, count in ways.items():
                if begin < at <= layers - left:
                    new[at] = new.get(at, 0) + count * shares[at - begin]
        ways = new
    return sum(ways.values())
