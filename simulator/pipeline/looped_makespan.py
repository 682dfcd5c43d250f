"""Seconds of a step of looped chunks, whatever their sizes, in waves.

A rank runs a + 2 d forward passes, then a forward and a backward pass in turn while there are any
(interleaved 1F1B: a = (v-1) g; breadth-first: a = m v, all forward passes come first). In wave t it
is at forward pass t + a + d and at backward pass t - d. Then all that it waits for belongs to
earlier waves: its neighbours' passes to the wave before, and those at the other end of the
pipeline, for its next chunk, to g - p + 1 waves before.
Legend: p ranks, v chunks of a rank, which are its turns, m micro-batches in groups of g, d ranks
between a rank and the last.
Source: the orders of `interleaved` and `breadth_first`, whose event simulation this equals.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Column, Mask, Value


def makespan(
    forward: Value, backward: Value, micro_batches: Column, group: int, ahead: int
) -> Value:
    """Seconds from the first start to the last end [column].

    `forward` and `backward` are seconds of a micro-batch in each chunk [turn, rank, column],
    `micro_batches` [column] whole groups of `group` >= p, and `ahead` is a.
    """
    turns, ranks, columns = forward.shape
    passes, away = micro_batches * turns, np.arange(ranks)[::-1]
    waves = np.arange(1 - ranks - ahead, passes.max() + ranks - 1)[:, None]
    on = _Passes(waves + ahead + away, passes, group, turns)
    back = _Passes(waves - away, passes, group, turns)
    on_seconds, back_seconds = forward.reshape(-1, columns), backward[::-1].reshape(-1, columns)
    own, next_ = np.zeros((2, ranks, columns))
    # Ends of the last passes; before the first rank, and behind the last, what comes round.
    went, came = np.zeros((2, ranks + 1, columns))
    gap = group - ranks + 1
    round_on, round_back = np.zeros((2, waves.size + gap, columns))
    for t in range(waves.size):
        if on.some[t]:
            went[0] = round_on[t] * on.continues[t, 0]
            np.add(np.maximum(own, went[:-1], out=next_), on_seconds[on.chunk[t]], out=next_)
            own, next_ = on.where_there(t, next_, own)
            went[1:] = own
        if back.some[t]:
            came[-1] = round_back[t] * back.continues[t, -1]
            np.add(np.maximum(own, came[1:], out=next_), back_seconds[back.chunk[t]], out=next_)
            own, next_ = back.where_there(t, next_, own)
            came[:-1] = own
        round_on[t + gap], round_back[t + gap] = went[-1], came[0]
    return np.asarray(own.max(axis=0))


class _Passes:
    """The passes of one direction: which of them a rank is at in each wave [wave, rank]."""

    def __init__(self, index: Column, passes: Column, group: int, turns: int) -> None:
        turn = index // group % turns
        self.index, self.passes = index, passes
        self.chunk = turn * index.shape[1] + np.arange(index.shape[1])
        self.continues = turn > 0
        """Whether the pass is of a later chunk than the first of its direction."""
        least, most = index.min(axis=1), index.max(axis=1)
        self.some: Mask = (most >= 0) & (least < passes.max())
        self.all: Mask = (least >= 0) & (most < passes.min())

    def where_there(self, t: int, new: Value, old: Value) -> tuple[Value, Value]:
        """The new ends where there is a pass and the old ones elsewhere, and an array to reuse."""
        if self.all[t]:
            return new, old
        at = self.index[t][:, None]
        np.copyto(old, new, where=(at >= 0) & (at < self.passes))
        return old, new
