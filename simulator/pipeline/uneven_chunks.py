"""Steps of looped chunks whose sizes differ: sums of layers on the longest paths.

Whatever layers take, no step is shorter than any path through its passes, and a path is so many
layers of each kind that run forward and so many that run backward. The longest paths are found
exactly for a few numbers of micro-batches and a few guesses of what layers take (`makespan`), once
for a placement; they are costed for every plan.
Legend: p ranks, v turns (chunks of a rank), m micro-batches in groups of g, k = m / g groups.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Column, Index, Value

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
        found = np.zeros((uneven.sum(), len(PATH_GROUPS) + 1, len(LENGTH_GUESSES), 2, lengths.size))
        found[..., there] = _path_layers(
            counts[uneven][..., there], lengths[there], ends[there], group
        )
        out[uneven] = found.reshape(-1, *out.shape[1:])
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
    makespan grows with the length of a kind, and of a further group.

    Where the path after five groups has less of a kind than the one after two it is another one,
    and a further group adds to it what the rank does that works longest.
    """
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
    grown = np.rint((found[..., 1:] - found[..., :1]) / LENGTH_CHANGE)
    paths = grown.reshape(cuts, len(PATH_GROUPS), len(LENGTH_GUESSES), 2, kinds)
    paths = _with_cycle(paths, axis=1)
    ranks, least = counts.sum(axis=1), paths[:, -1].min(axis=(-2, -1))
    longest = (ranks @ np.transpose(forward)).argmax(axis=1)[..., None]
    own = (group or ranks.shape[1]) * np.take_along_axis(ranks, longest, axis=1)
    paths[:, -1] = np.where(least[..., None, None] < 0, own[:, :, None], paths[:, -1])
    return paths


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
    cycle = (after - before) / (PATH_GROUPS[-1] - PATH_GROUPS[-2])
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
    passes, away = micro_batches[longest_first] * turns, np.arange(ranks)[::-1]
    # The last wave has no passes: all columns have ended before it.
    waves = np.arange(1 - ranks - ahead, passes.max() + ranks)
    # Columns that have not ended before a wave, the first ones.
    running = np.searchsorted(-passes, ranks - 1 - waves)
    on, back = (
        _WavePasses(seconds[..., longest_first], index, passes, running, group)
        for seconds, index in (
            (forward, waves[:, None] + ahead + away),
            (backward[::-1, ::-1], waves[:, None] - away[::-1]),
        )
    )
    busy_until, ends = np.zeros((ranks, columns)), np.empty(columns)
    for t, n in enumerate(running.tolist()):
        if n < busy_until.shape[1]:
            ends[longest_first[n : busy_until.shape[1]]] = busy_until[:, n:].max(axis=0)
            busy_until = busy_until[:, :n].copy()
            on.keep_columns(n)
            back.keep_columns(n)
        if on.some[t]:
            busy_until = on.ends(t, busy_until)
        if back.some[t]:
            # The last rank is the first that runs backward.
            busy_until = back.ends(t, busy_until[::-1])[::-1]
    return ends


class _WavePasses:
    """The passes of one direction, its ranks in the order in which a micro-batch meets them.

    What is not there takes minus infinity, and nothing waits for it.
    """

    def __init__(
        self, seconds: Value, index: Column, passes: Column, running: Index, group: int
    ) -> None:
        turns, ranks, columns = seconds.shape
        least, most = index.min(axis=1), index.max(axis=1)
        self.some = ((most >= 0) & (least < passes.max())).tolist()
        """Whether any rank has a pass in a wave."""
        self.all = ((least >= 0) & (most < passes[np.maximum(running - 1, 0)])).tolist()
        """Whether every rank has one in every column that runs."""
        turn = index // group % turns
        self.continues = (turn[:, 0] > 0).tolist()
        """Whether the first rank's pass is of a later chunk than its first."""
        # Seconds by chunk, for each number of columns whose passes are over; then of no pass.
        over = np.array(sorted({*passes.tolist()}))
        there = passes > np.concatenate([[-1], over])[:, None, None]
        chunks = np.where(there, seconds.reshape(-1, columns), -np.inf)
        self.seconds = chunks.reshape(-1, columns)
        ended = np.where(index < 0, over.size, np.searchsorted(over, index, side="right"))
        self.rows = [*((ended * turns + turn) * ranks + np.arange(ranks))]
        self.before, self.after = np.full((2, ranks + 1, columns), -np.inf)
        """Ends of the passes of two waves [rank, column], behind what the first rank waits for."""
        self.gap = group - ranks + 1
        self.round = np.zeros((len(index) + self.gap, columns))
        """Ends on the last rank, by the wave in which the first one may go on."""
        self.keep_columns(columns)

    def keep_columns(self, n: int) -> None:
        """Leave out all columns but the first."""
        self.seconds, self.round = self.seconds[:, :n].copy(), self.round[:, :n]
        self.before, self.after = self.before[:, :n].copy(), self.after[:, :n].copy()
        self.taken, self.latest = np.empty((2, len(self.before) - 1, n))

    def ends(self, t: int, busy_until: Value) -> Value:
        """When ranks have ended their passes of a wave, which were busy until then."""
        before, after = self.before, self.after
        before[0] = self.round[t] if self.continues[t] else 0.0
        ends = after[1:]
        np.maximum(busy_until, before[:-1], out=ends)
        ends += self.seconds.take(self.rows[t], axis=0, out=self.taken, mode="clip")
        self.round[t + self.gap] = after[-1]
        self.before, self.after = after, before
        if not self.all[t]:
            np.maximum(busy_until, ends, out=self.latest)
        return ends if self.all[t] else self.latest
