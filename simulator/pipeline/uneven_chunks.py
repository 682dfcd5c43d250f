"""Steps of looped chunks whose sizes differ: sums of layers on the longest paths.

Whatever layers take, no step is shorter than any path through its passes, and a path is so many
layers of each kind that run forward and so many that run backward. The longest paths are found
exactly for a few numbers of micro-batches and a few guesses of what layers take (`makespan`), once
for a placement; they are costed for every plan.
Legend: p ranks, v turns (chunks of a rank), m micro-batches in groups of g, k = m / g groups.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Column, Index, Mask, Value

PATH_GROUPS = (1, 2, 5)
"""Groups of micro-batches whose longest paths are found. Between them seconds lie on straight
lines, beyond the last on the one that its cycle gives."""
LENGTH_GUESSES = ((0.75, 2.03), (1.35, 3.02))
"""Seconds of embedding and head over what their products say, and of backward over forward passes:
without and with recompute."""
MOST_CHUNKS = 128
"""Chunks of a model beyond which no path is looked for: it takes a millisecond for each ten."""
LENGTH_CHANGE = 1e-6
"""Change of a kind's length that shows how many of its layers are on the longest path."""


def longest_paths(counts: Value, lengths: Value, ends: Value, group: int) -> Value:
    """Layers on the longest paths [cut, path, 2 kinds], forward and backward, of chunks with
    `counts` [cut, turn, rank, kind]: those of every guess after each of GROUPS, then those of a
    further group.

    `lengths` [kind] are relative seconds of layers, `ends` [kind] which kinds are no
    blocks; `group` is g, or 0 where all forward passes come first: then p stands for it.
    """
    sizes = (counts * np.where(ends, 0.0, lengths)).sum(axis=3)
    uneven = ~np.isclose(sizes, sizes[:, :1, :1]).all(axis=(1, 2))
    out = _equal_chunk_layers(counts, sizes, ends, group or counts.shape[2])
    if uneven.any() and sizes[0].size <= MOST_CHUNKS:
        there = np.flatnonzero(counts.any(axis=(0, 1, 2)))
        found = np.zeros((uneven.sum(), len(PATH_GROUPS), len(LENGTH_GUESSES), 2, lengths.size))
        found[..., there] = _path_layers(
            counts[uneven][..., there], lengths[there], ends[there], group
        )
        out[uneven] = _with_cycle(found, axis=1).reshape(-1, *out.shape[1:])
    return out


def _equal_chunk_layers(counts: Value, sizes: Value, ends: Value, group: int) -> Value:
    """The last rank, which holds the head, works all the time once the first chunks of the others
    have let it begin. Where chunks of a turn differ, as long as if it had the largest."""
    largest = np.take_along_axis(counts, sizes.argmax(axis=2)[..., None, None], axis=2)[:, :, 0]
    last = np.where(ends, counts[:, :, -1], largest).sum(axis=1)
    fill = counts[:, 0, :-1].sum(axis=1)
    each = [k * group * last + fill for k in PATH_GROUPS] + [group * last]
    return np.tile(np.stack(each, axis=1), 2).repeat(len(LENGTH_GUESSES), axis=1)


def _path_layers(counts: Value, lengths: Value, ends: Value, group: int) -> Value:
    """Layers on the longest paths [cut, group, guess, direction, kind], which are how fast a
    makespan grows with the length of a kind."""
    cuts, kinds = counts.shape[0], lengths.size
    # No sum of lengths is another's: one path is the longest.
    own = lengths * (1 + 1e-3 * np.sqrt(1.0 + np.arange(kinds)))
    forward = [np.where(ends, over, 1.0) * own for over, _ in LENGTH_GUESSES]
    guessed = [[one, ratio * one] for one, (_, ratio) in zip(forward, LENGTH_GUESSES, strict=True)]
    changes = np.vstack([np.zeros(2 * kinds), LENGTH_CHANGE * np.eye(2 * kinds)])
    asked = (np.reshape(guessed, (-1, 1, 2 * kinds)) + changes).reshape(-1, 2, kinds)
    on, back = (
        np.einsum("ctrk,ak->trca", counts, asked[:, way]).reshape(*counts.shape[1:3], -1)
        for way in (0, 1)
    )
    shape = (len(PATH_GROUPS), cuts, len(LENGTH_GUESSES), 1 + 2 * kinds)
    found = makespans(on, back, group).reshape(shape).swapaxes(0, 1)
    grown = (found[..., 1:] - found[..., :1]) / LENGTH_CHANGE
    return np.rint(grown).reshape(cuts, len(PATH_GROUPS), len(LENGTH_GUESSES), 2, kinds)


def makespans(forward: Value, backward: Value, group: int) -> Value:
    """Seconds of a step after each of GROUPS [group, column], of chunks that take `forward` and
    `backward` seconds a micro-batch [turn, rank, column]."""
    turns, ranks, columns = forward.shape
    if not group:
        sizes = [k * ranks for k in PATH_GROUPS]
        each = [makespan(forward, backward, np.full(columns, m), m, m * turns) for m in sizes]
        return np.array(each)
    m = np.repeat(np.array(PATH_GROUPS) * group, columns)
    forward, backward = (np.tile(one, len(PATH_GROUPS)) for one in (forward, backward))
    return makespan(forward, backward, m, group, (turns - 1) * group).reshape(-1, columns)


def _with_cycle(each: Value, axis: int = 0) -> Value:
    """With what a further group takes behind each of GROUPS, along an axis."""
    before, after = np.take(each, [-2], axis), np.take(each, [-1], axis)
    cycle = np.maximum(after - before, 0.0) / (PATH_GROUPS[-1] - PATH_GROUPS[-2])
    return np.concatenate([each, cycle], axis)


def paths_of_seconds(forward: Value, backward: Value, group: int) -> Value:
    """What `seconds` reads [path, column], of chunks whose seconds are known."""
    return _with_cycle(makespans(forward, backward, group))


def path_seconds(paths: Value, groups: Value) -> Value:
    """Seconds of k = `groups` groups [row], from those of the paths [path, row]."""
    known = paths.reshape(len(PATH_GROUPS) + 1, -1, groups.size)
    after = known[:-1].max(axis=1)
    at: Column = np.clip(np.searchsorted(PATH_GROUPS, groups), 1, len(PATH_GROUPS) - 1)
    low, high = np.take(PATH_GROUPS, at - 1), np.take(PATH_GROUPS, at)
    share = np.clip((groups - low) / (high - low), 0.0, 1.0)
    rows = np.arange(groups.size)
    between = after[at - 1, rows] * (1 - share) + after[at, rows] * share
    beyond = np.maximum(groups - PATH_GROUPS[-1], 0.0)
    out: Value = np.where(beyond > 0, (known[-2] + beyond * known[-1]).max(axis=0), between)
    return out


def makespan(
    forward: Value, backward: Value, micro_batches: Column, group: int, ahead: int
) -> Value:
    """Seconds from the first start to the last end of looped chunks [column], in waves.

    A rank runs a + 2 d forward passes, then a forward and a backward pass in turn while there are
    any (interleaved 1F1B: a = (v-1) g; breadth-first: a = m v, all forward passes come first). In
    wave t it is at forward pass t + a + d and at backward pass t - d. Then all that it waits for
    belongs to earlier waves: its neighbours' passes to the wave before, and those at the other end
    of the pipeline, for its next chunk, to g - p + 1 waves before. d are the ranks between a rank
    and the last.

    `forward` and `backward` are seconds of a micro-batch in each chunk [turn, rank, column],
    `micro_batches` [column] whole groups of `group` >= p, and `ahead` is a.
    Source: the orders of `interleaved` and `breadth_first`, whose event simulation this equals.
    """
    turns, ranks, columns = forward.shape
    longest_first = np.argsort(-micro_batches, kind="stable")
    forward, backward = (
        one.reshape(-1, columns)[:, longest_first] for one in (forward, backward[::-1])
    )
    passes, away = micro_batches[longest_first] * turns, np.arange(ranks)[::-1]
    waves = np.arange(1 - ranks - ahead, passes.max() + ranks - 1)
    # Columns that have not ended before a wave, the first ones.
    running = np.searchsorted(-passes, ranks - 1 - waves)
    on = _WavePasses(waves[:, None] + ahead + away, passes, running, group, turns)
    back = _WavePasses(waves[:, None] - away, passes, running, group, turns)
    own, next_ = np.zeros((2, ranks, columns))
    # Ends of the last passes; before the first rank, and behind the last, what comes round.
    went, came = np.zeros((2, ranks + 1, columns))
    gap = group - ranks + 1
    round_on, round_back = np.zeros((2, waves.size + gap, columns))
    ends = np.empty(columns)
    for t, n in enumerate(running.tolist()):
        if n < own.shape[1]:
            ends[longest_first[n : own.shape[1]]] = own[:, n:].max(axis=0)
            own, next_, went, came = (one[:, :n].copy() for one in (own, next_, went, came))
            forward, backward, passes = forward[:, :n], backward[:, :n], passes[:n]
        if on.some[t]:
            went[0] = round_on[t, :n] * on.continues[t, 0]
            np.add(np.maximum(own, went[:-1], out=next_), forward[on.chunk[t]], out=next_)
            own, next_ = on.where_there(t, passes, next_, own)
            went[1:] = own
        if back.some[t]:
            came[-1] = round_back[t, :n] * back.continues[t, -1]
            np.add(np.maximum(own, came[1:], out=next_), backward[back.chunk[t]], out=next_)
            own, next_ = back.where_there(t, passes, next_, own)
            came[:-1] = own
        round_on[t + gap, :n], round_back[t + gap, :n] = went[-1], came[0]
    ends[longest_first[: own.shape[1]]] = own.max(axis=0)
    return ends


class _WavePasses:
    """The passes of one direction: which of them a rank is at in each wave [wave, rank]."""

    def __init__(
        self, index: Column, passes: Column, running: Index, group: int, turns: int
    ) -> None:
        turn = index // group % turns
        self.index = index
        self.chunk = turn * index.shape[1] + np.arange(index.shape[1])
        self.continues = turn > 0
        """Whether the pass is of a later chunk than the first of its direction."""
        least, most = index.min(axis=1), index.max(axis=1)
        self.some: Mask = (most >= 0) & (least < passes.max())
        fewest = passes[np.maximum(running - 1, 0)]
        self.all: Mask = (least >= 0) & (most < fewest)
        """Whether every rank has one in every column that runs."""

    def where_there(self, t: int, passes: Column, new: Value, old: Value) -> tuple[Value, Value]:
        """The new ends where there is a pass and the old ones elsewhere, and an array to reuse."""
        if self.all[t]:
            return new, old
        at = self.index[t][:, None]
        np.copyto(old, new, where=(at >= 0) & (at < passes))
        return old, new
