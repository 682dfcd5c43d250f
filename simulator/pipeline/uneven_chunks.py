"""Critical paths of interleaved stages whose chunks differ, as layers.

A rank works through one chunk for p micro-batches, a *turn*, then through the next. Between
neighbours there is room for about two micro-batches, so a rank that is slow in one turn holds up
a rank that is slow in another: both last as long as the slower of the two in every turn.
Legend: p ranks, v turns, m micro-batches, R the last rank, which holds the head, d ranks between
another and R; a path is a number of layers of each kind.
Source: the longest paths of event simulations of balanced layouts; of the many there are, these
decide (docs/decisions.md has what is missed).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from ..base.arrays import Column, Value


class Path(IntEnum):
    """Layers of the paths: [kind] that run forward, then [kind] that run backward.

    T = m LAST + FILL                  R works all the time once it has begun
    T = m BEFORE + TURN                R and a rank before it wait for each other
    T = m max(AFTER, HEAD) + LATE      R and a rank after it do: the first ones, a turn later
    """

    LAST = 0
    """Of rank R."""
    FILL = 1
    """Of the first chunks of all other ranks, and by which larger chunks make R wait."""
    TURN = 2
    """Of the largest turn on all ranks."""
    LATE = 3
    """What fills the pipeline at the pace of a rank after R; some negative, for R is late then."""
    BEFORE = 4
    AFTER = 5
    """Where the turn that meets the head is larger, it counts and not the head."""
    HEAD = 6
    """The same with the head."""


def critical_paths(layers: Column | Value, counts: Value) -> Value:
    """Paths [Path, 2 kinds] of chunks with `layers` [turn, rank] and `counts` [turn, rank, kind].

    A pace is zero when no rank has a larger chunk than R in any turn but the last. Layers that take
    unequal time may count as more or less than one.
    """
    v, p = layers.shape
    first = counts[0, :-1].sum(axis=0) + _waiting(layers, counts)
    largest = counts[layers.sum(axis=1).argmax()].sum(axis=0)
    turns, back = np.arange(v), np.array([*range(v - 2, -1, -1), v - 1])
    last, after = _Blocks(turns, back), _Blocks(np.roll(turns, -1), turns[::-1])
    ahead, behind = np.arange(p - 1, 0, -1), np.arange(1, p)
    out = {
        Path.LAST: np.tile(counts[:, -1].sum(axis=0), 2),
        Path.FILL: np.tile(first, 2),
        Path.TURN: np.tile(largest, 2),
        Path.LATE: _late(layers, counts),
        Path.BEFORE: _pace(layers, counts, last, last, ahead, head=True),
        Path.AFTER: _pace(layers, counts, last, after, behind, head=False),
        Path.HEAD: _pace(layers, counts, last, after, behind, head=True),
    }
    return np.stack([out[path] for path in Path])


class _Blocks:
    """Turns of the forward and the backward passes that a rank alternates between [block]."""

    def __init__(self, forward: Column, backward: Column) -> None:
        self.forward, self.backward = forward, backward

    def length(self, layers: Column | Value) -> Value:
        """Layers of every rank [block, rank], a backward pass as two forward ones."""
        return np.asarray(layers[self.forward] + 2 * layers[self.backward], float)


def _waiting(layers: Column | Value, counts: Value) -> Value:
    """Layers [kind] for which R waits while the pipeline fills and drains: p less the d that
    ranks between them take up, of the largest chunk in excess of R's, in all turns but the last."""
    p = layers.shape[1]
    passes = np.arange(1, p + 1)
    out = np.zeros(counts.shape[2])
    for turn, excess in enumerate(np.maximum(layers[:-1] - layers[:-1, -1:], 0)):
        rank = int((passes * excess).argmax())
        out += passes[rank] * (counts[turn, rank] - counts[turn, -1]) * (excess[rank] > 0)
    return out


def _late(layers: Column | Value, counts: Value) -> Value:
    """Path.LATE: with s and b layers of the smallest and largest chunk without an end,
    s - (p - 3)(b - s) forward and (p - 1) s + 2 b backward, as found in event simulations."""
    p = layers.shape[1]
    inner, size = counts.reshape(layers.size, -1), layers.ravel()
    small, big = inner[1:-1][size[1:-1].argmin()], inner[1:-1][size[1:-1].argmax()]
    return np.concatenate([small - (p - 3) * (big - small), (p - 1) * small + 2 * big])


def _pace(
    layers: Column | Value,
    counts: Value,
    last: _Blocks,
    other: _Blocks,
    distance: Column,
    head: bool,
) -> Value:
    """Forward and backward layers [2 kinds] of R and the rank that holds it up most.

    Every block takes as long as the longer of the two; d times two of the larger chunks but one
    of the smaller are saved in a round of all turns.
    """
    p = layers.shape[1]
    own, others = last.length(layers)[:, -1:], other.length(layers)[:, :-1]
    longer = others > own
    if head:
        longer[-1] = False
    largest, smallest = layers[:, :-1].max(axis=0), layers[:, -1].min()
    room = 3 * distance * (2 * largest - smallest) / p
    held = np.where(longer, others - own, 0).sum(axis=0) - room
    rank = int(np.where(longer.any(axis=0), held, -np.inf).argmax())
    if not longer[:, rank].any():
        return np.zeros(2 * counts.shape[2])
    mine = longer[:, rank, None]
    big, small = layers[:, rank].argmax(), layers[:, -1].argmin()
    saved = distance[rank] / p * (2 * counts[big, rank] - counts[small, -1])
    forward = np.where(mine, counts[other.forward, rank], counts[last.forward, -1]).sum(axis=0)
    backward = np.where(mine, counts[other.backward, rank], counts[last.backward, -1]).sum(axis=0)
    return np.concatenate([forward - saved, backward - saved])


def seconds(paths: Value, m: Value) -> Value:
    """Seconds of m micro-batches, from those of the paths [Path, skeleton]."""
    alone = m * paths[Path.LAST] + paths[Path.FILL]
    before = m * paths[Path.BEFORE] + paths[Path.TURN]
    after = m * np.maximum(paths[Path.AFTER], paths[Path.HEAD]) + paths[Path.LATE]
    out: Value = np.maximum(alone, np.maximum(before, after))
    return out
