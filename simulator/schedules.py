"""Which rank holds which layers, how long does it idle, how much does it keep?

Legend: p pipeline ranks, v chunks a rank holds, m micro-batches, r rank from 0, L layers.
Source of the closed forms: Huang et al. 2019 (GPipe); Narayanan et al. 2021, sections 2.2 and
2.3 (1F1B, interleaved 1F1B); Lamy-Poirier 2023 (breadth-first); Qi et al. 2024 (zero bubble).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .plan import Schedule, codes_in

Value = NDArray[np.float64]


class Layout(NamedTuple):
    """Layers by rank; ranks with the same layers are one class, represented by its first rank.

    The first rank of a class keeps the most micro-batches in flight and has the shortest
    cool-down before it, so it is the worst of its class in every respect.
    """

    counts: Value
    """Layers of each kind [class, kind]."""
    rank: Value
    """First rank of each class [class]."""
    ranks_alike: Value
    """Ranks of each class [class]."""
    before: Value
    """Layers of each kind on all earlier ranks [class, kind]."""
    total: Value
    """Layers of each kind on all ranks [kind]."""


def balanced_layers(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, as equal as possible; the first and last chunk, which also hold the
    embedding and the head, are the last to get one more."""
    each, more = divmod(layers, chunks)
    order = [*range(1, chunks - 1), 0, chunks - 1][:chunks] if chunks > 1 else [0]
    extra = set(order[:more])
    return tuple(each + (i in extra) for i in range(chunks))


def chunk_layers(
    layers: int, pp: int, virtual: int, first: int, last: int, explicit: Sequence[int]
) -> tuple[int, ...]:
    """Layers of each chunk in model order; chunk i runs on rank i mod pp.

    `explicit` gives every chunk, or every rank (each rank's layers are then spread over its
    chunks). `first` and `last` fix those of the first and last rank; 0 leaves them balanced.
    """
    chunks = pp * virtual
    if len(explicit) == chunks:
        return tuple(explicit)
    if explicit:
        per_rank = [balanced_layers(n, virtual) for n in explicit]
        return tuple(per_rank[i % pp][i // pp] for i in range(chunks))
    if not first and not last:
        return balanced_layers(layers, chunks)
    if pp == 1:
        return balanced_layers(layers, chunks)
    free = [r for r in range(pp) if not (first and r == 0) and not (last and r == pp - 1)]
    middle = balanced_layers(layers - first - last, len(free) * virtual) if free else ()
    fixed = {0: balanced_layers(first, virtual), pp - 1: balanced_layers(last, virtual)}
    out = []
    for i in range(chunks):
        r, turn = i % pp, i // pp
        if r in free:
            out.append(middle[turn * len(free) + free.index(r)])
        else:
            out.append(fixed[r][turn])
    return tuple(out)


def parameter_cut(layers: Sequence[float], head: float, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk when a chunk ends as soon as its share of the parameters is passed.

    A layer goes to the current chunk, which ends once the running sum exceeds (i + 1) / chunks
    of the total, LM head included; the last chunk may hold the head alone (nanotron).
    """
    counts, running, total = [0] * chunks, 0.0, sum(layers) + head
    at = 0
    for parameters in layers:
        counts[at] += 1
        running += parameters
        if running > (at + 1) * total / chunks and at < chunks - 1:
            at += 1
    return tuple(counts)


@lru_cache(maxsize=4096)
def rank_counts(
    order: tuple[int, ...], kinds: tuple[str, ...], pp: int, chunks: tuple[int, ...]
) -> Value:
    """Layers of each kind [rank, kind], ends included: the embedding on the first chunk, head
    and MTP on the last."""
    counts = np.zeros((pp, len(kinds)))
    at = 0
    for i, size in enumerate(chunks):
        for kind in order[at : at + size]:
            counts[i % pp, kind] += 1
        at += size
    if "embedding" not in kinds:
        counts.flags.writeable = False
        return counts
    last = (len(chunks) - 1) % pp
    counts[0, kinds.index("embedding")] = 1
    shared = "shared " if last == 0 else ""
    head = shared + "head" if "shared head" in kinds else "head"
    counts[last, kinds.index(head)] = 1
    if "mtp" in kinds:
        counts[last, kinds.index(shared + "mtp")] = 1
    counts.flags.writeable = False
    return counts


@lru_cache(maxsize=4096)
def layout(
    order: tuple[int, ...], kinds: tuple[str, ...], pp: int, chunks: tuple[int, ...]
) -> Layout:
    """The distinct ranks of a placement."""
    counts = rank_counts(order, kinds, pp, chunks)
    alike: dict[bytes, list[int]] = {}
    for r, row in enumerate(counts):
        alike.setdefault(row.tobytes(), []).append(r)
    ranks = [members[0] for members in alike.values()]
    sizes = np.array([len(members) for members in alike.values()], float)
    before = np.cumsum(counts, axis=0) - counts
    total = counts.sum(axis=0)
    return Layout(counts[ranks], np.array(ranks, float), sizes, before[ranks], total)


def every_rank(
    order: tuple[int, ...], kinds: tuple[str, ...], pp: int, chunks: tuple[int, ...]
) -> Layout:
    """A placement with every rank on its own, for reports by stage."""
    counts = rank_counts(order, kinds, pp, chunks)
    before = np.cumsum(counts, axis=0) - counts
    return Layout(counts, np.arange(pp, dtype=float), np.ones(pp), before, counts.sum(axis=0))


def _in_flight_gpipe(p: Value, v: Value, m: Value, r: Value) -> Value:
    return m + 0 * r


def _in_flight_1f1b(p: Value, v: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, p - r)


def _in_flight_interleaved(p: Value, v: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, ((v - 1) * p + 2 * (p - r - 1) + 1) / v)


def _in_flight_naive(p: Value, v: Value, m: Value, r: Value) -> Value:
    return 1.0 + 0 * (m + r)


def _in_flight_zb_h1(p: Value, v: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, p) + 0 * r


def _in_flight_zb_h2(p: Value, v: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, 2 * p - 1) + 0 * r


def _in_flight_dual(p: Value, v: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, p + 1) + 0 * r


def _in_flight_dual_v(p: Value, v: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, p + 0.5) + 0 * r


_IN_FLIGHT = {
    Schedule.GPIPE: _in_flight_gpipe,
    Schedule.ONE_F_ONE_B: _in_flight_1f1b,
    Schedule.INTERLEAVED: _in_flight_interleaved,
    Schedule.NAIVE: _in_flight_naive,
    Schedule.BREADTH_FIRST: _in_flight_gpipe,
    Schedule.ZB_H1: _in_flight_zb_h1,
    Schedule.ZB_H2: _in_flight_zb_h2,
    Schedule.ZB_H2_SYNC: _in_flight_zb_h2,
    Schedule.ZB_V: _in_flight_zb_h1,
    Schedule.DUALPIPE: _in_flight_dual,
    Schedule.DUALPIPE_V: _in_flight_dual_v,
}


def in_flight(schedule: NDArray[np.int64], p: Value, v: Value, m: Value, r: Value) -> Value:
    """Micro-batches whose activations rank r keeps at its peak, in units of its whole share.

        GPipe, breadth-first m;  naive 1;  1F1B min(m, p - r);
        interleaved min(m, [(v-1) p + 2 (p-r-1) + 1] / v);  ZB-H1, ZB-V min(m, p);
        ZB-H2 min(m, 2p - 1);  DualPipe min(m, p + 1);  DualPipeV min(m, p + 1/2)

    Activations of a deferred weight gradient count as kept until it is computed. DualPipe's
    share of a rank is the mean of its two stages.
    `r` may have a leading axis of ranks [class, row]; the others are [row].
    """
    codes = codes_in(schedule)
    if len(codes) == 1:
        return _IN_FLIGHT[Schedule(codes[0])](p, v, m, r)
    out = np.empty(np.broadcast_shapes(m.shape, r.shape))
    for code in codes:
        rows = schedule == code
        out[..., rows] = _IN_FLIGHT[Schedule(code)](p[rows], v[rows], m[rows], r[..., rows])
    return out


ALL_AT_ONCE = (Schedule.GPIPE, Schedule.BREADTH_FIRST)
"""Schedules that run every forward pass before the first backward pass."""


def losses_in_flight(schedule: NDArray[np.int64], m: Value) -> Value:
    """Micro-batches whose logits wait for the backward pass: all when every forward pass comes
    first, else one."""
    waits = (schedule == ALL_AT_ONCE[0]) | (schedule == ALL_AT_ONCE[1])
    return np.where(waits, m, 1.0)


def exposed_hops(p: Value, v: Value, m: Value, overlapped: Value, contention: float = 0.0) -> Value:
    """Sends on the critical path of a step, each one boundary tensor.

        overlapped 2 (p v - 1);  1F1B 2 (p - 1) + 2 (p - 1) m / p - 2;  else + (m - 1) v

    The first micro-batch waits for every boundary on its way up and down. In the steady state of
    1F1B the p micro-batches in flight each make a round trip of 2 (p - 1) hops per p of them;
    interleaved stages exchange both directions once a chunk, of which only `contention` shows
    when overlapped. So the exposed volume lies between one micro-batch's and the whole batch's
    boundary activations (ledger T8). Of 1F1B and interleaved stages.
    """
    steady = np.where(v > 1, (m - 1) * v, np.maximum(2 * (p - 1) * m / p - 2, 0.0))
    shown = 1 - overlapped * (1 - contention)
    out: Value = (2 * (p * v - 1) + steady * shown) * (p > 1)
    return out
