"""Which rank holds which layers, how long does it idle, how much does it keep?

Legend: p pipeline ranks, v chunks a rank holds, m micro-batches, r rank from 0, L layers,
g micro-batches that a rank runs through one chunk before it turns to the next.
Source of the closed forms: Huang et al. 2019 (GPipe); Narayanan et al. 2021, sections 2.2 and
2.3 (1F1B, interleaved 1F1B); Lamy-Poirier 2023 (breadth-first); Qi et al. 2024 (zero bubble).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .plan import Schedule, codes_in

Value = NDArray[np.float64]


class Placement(IntEnum):
    """Which ranks run the chunks of a model."""

    LOOPED = 0
    """Chunk i on rank i mod p."""
    V_SHAPED = 1
    """Down the ranks and up again: rank r holds chunks r and 2 p - 1 - r."""
    TWO_WAY = 2
    """Two copies of the model, in opposite directions: rank r holds stages r and p - 1 - r."""


V_SHAPED = (Schedule.ZB_V, Schedule.DUALPIPE_V)
"""Schedules with two chunks a rank, placed in a V."""
LOOPED = (Schedule.INTERLEAVED, Schedule.BREADTH_FIRST)
"""Schedules with two chunks a rank or more, placed in turn."""
_PLACEMENTS = np.array(
    [
        Placement.V_SHAPED if s in V_SHAPED else Placement.TWO_WAY * (s == Schedule.DUALPIPE)
        for s in sorted(Schedule)
    ]
)


def placement(schedule: NDArray[np.int64]) -> NDArray[np.int64]:
    """The Placement of each schedule."""
    out: NDArray[np.int64] = _PLACEMENTS[schedule]
    return out


def chunk_ranks(pp: int, chunks: int, place: int) -> NDArray[np.int64]:
    """The rank of each chunk in model order; of two copies, those of the first [chunk]."""
    turn, rank = np.divmod(np.arange(chunks), pp)
    upwards = (place == Placement.V_SHAPED) & (turn % 2 == 1)
    return np.where(upwards, pp - 1 - rank, rank)


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


@lru_cache(maxsize=4096)
def chunk_layers(
    layers: int,
    pp: int,
    virtual: int,
    first: int,
    last: int,
    explicit: tuple[int, ...],
    place: int = Placement.LOOPED,
) -> tuple[int, ...]:
    """Layers of each chunk in model order.

    `explicit` gives every chunk, or every rank (each rank's layers are then spread over its
    chunks). `first` and `last` fix those of the first and last rank; 0 leaves them balanced.
    """
    chunks = pp * virtual
    if len(explicit) == chunks:
        return tuple(explicit)
    ranks = chunk_ranks(pp, chunks, place).tolist()
    if explicit:
        per_rank = [balanced_layers(n, virtual) for n in explicit]
        return tuple(per_rank[r][i // pp] for i, r in enumerate(ranks))
    if pp == 1 or (not first and not last):
        return balanced_layers(layers, chunks)
    free = [r for r in range(pp) if not (first and r == 0) and not (last and r == pp - 1)]
    middle = balanced_layers(layers - first - last, len(free) * virtual) if free else ()
    fixed = {0: balanced_layers(first, virtual), pp - 1: balanced_layers(last, virtual)}
    left = iter(middle)
    return tuple(next(left) if r in free else fixed[r][i // pp] for i, r in enumerate(ranks))


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
    order: tuple[int, ...],
    kinds: tuple[str, ...],
    pp: int,
    chunks: tuple[int, ...],
    place: int = Placement.LOOPED,
    mtp_stage: int = 0,
) -> Value:
    """Layers of each kind [rank, kind], ends included: the embedding on the first chunk, the head
    and, unless `mtp_stage` says another, MTP on the last; of two copies, their mean."""
    counts = np.zeros((pp, len(kinds)))
    ranks = chunk_ranks(pp, len(chunks), place).tolist()
    at = 0
    for size, rank in zip(chunks, ranks, strict=True):
        for kind in order[at : at + size]:
            counts[rank, kind] += 1
        at += size
    if "embedding" in kinds:
        _place_ends(counts, kinds, ranks, place, mtp_stage)
    if place == Placement.TWO_WAY:
        counts = (counts + counts[::-1]) / 2
    counts.flags.writeable = False
    return counts


def _place_ends(
    counts: Value, kinds: tuple[str, ...], ranks: list[int], place: int, mtp_stage: int
) -> None:
    """Add embedding, head and MTP to the layers of the ranks that hold them."""
    first, last = ranks[0], ranks[-1]
    counts[first, kinds.index("embedding")] = 1
    shared = "shared " if last == first or place == Placement.TWO_WAY else ""
    head = shared + "head" if "shared head" in kinds else "head"
    counts[last, kinds.index(head)] = 1
    if "mtp" in kinds:
        own = ranks[mtp_stage - 1]
        counts[own, kinds.index(_mtp_kind(own, first, last, bool(shared)))] = 1


def _mtp_kind(rank: int, first: int, last: int, together: bool) -> str:
    """MTP with what it does not find on its rank, of embedding and head."""
    if rank not in (first, last):
        return "lone mtp"
    return "shared mtp" if together else "mtp"


@lru_cache(maxsize=4096)
def layout(
    order: tuple[int, ...],
    kinds: tuple[str, ...],
    pp: int,
    chunks: tuple[int, ...],
    place: int = Placement.LOOPED,
    mtp_stage: int = 0,
) -> Layout:
    """The distinct ranks of a placement."""
    counts = rank_counts(order, kinds, pp, chunks, place, mtp_stage)
    alike: dict[bytes, list[int]] = {}
    for r, row in enumerate(counts):
        alike.setdefault(row.tobytes(), []).append(r)
    ranks = [members[0] for members in alike.values()]
    sizes = np.array([len(members) for members in alike.values()], float)
    before = _before(counts, place)[ranks]
    return Layout(counts[ranks], np.array(ranks, float), sizes, before, counts.sum(axis=0))


def every_rank(
    order: tuple[int, ...],
    kinds: tuple[str, ...],
    pp: int,
    chunks: tuple[int, ...],
    place: int = Placement.LOOPED,
    mtp_stage: int = 0,
) -> Layout:
    """A placement with every rank on its own, for reports by stage."""
    counts = rank_counts(order, kinds, pp, chunks, place, mtp_stage)
    ranks = np.arange(pp, dtype=float)
    return Layout(counts, ranks, np.ones(pp), _before(counts, place), counts.sum(axis=0))


def _before(counts: Value, place: int) -> Value:
    """Layers of all earlier ranks; none where micro-batches enter at both ends."""
    earlier: Value = np.cumsum(counts, axis=0) - counts
    return 0 * earlier if place == Placement.TWO_WAY else earlier


def _in_flight_gpipe(p: Value, v: Value, g: Value, m: Value, r: Value) -> Value:
    return m + 0 * r


def _in_flight_1f1b(p: Value, v: Value, g: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, p - r)


def _in_flight_interleaved(p: Value, v: Value, g: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, ((v - 1) * g + 2 * (p - r - 1) + 1) / v)


def _in_flight_naive(p: Value, v: Value, g: Value, m: Value, r: Value) -> Value:
    return 1.0 + 0 * (m + r)


def _in_flight_zb_h1(p: Value, v: Value, g: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, p) + 0 * r


def _in_flight_zb_h2(p: Value, v: Value, g: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, 2 * p - 1) + 0 * r


def _in_flight_dual(p: Value, v: Value, g: Value, m: Value, r: Value) -> Value:
    return np.minimum(m, p + 1) + 0 * r


def _in_flight_dual_v(p: Value, v: Value, g: Value, m: Value, r: Value) -> Value:
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


def in_flight(
    schedule: NDArray[np.int64], p: Value, v: Value, g: Value, m: Value, r: Value
) -> Value:
    """Micro-batches whose activations rank r keeps at its peak, in units of its whole share.

        GPipe, breadth-first m;  naive 1;  1F1B min(m, p - r);
        interleaved min(m, [(v-1) g + 2 (p-r-1) + 1] / v);  ZB-H1, ZB-V min(m, p);
        ZB-H2 min(m, 2p - 1);  DualPipe min(m, p + 1);  DualPipeV min(m, p + 1/2)

    Activations of a deferred weight gradient count as kept until it is computed. DualPipe's
    share of a rank is the mean of its two stages.
    `r` may have a leading axis of ranks [class, row]; the others are [row].
    """
    codes = codes_in(schedule)
    if len(codes) == 1:
        return _IN_FLIGHT[Schedule(codes[0])](p, v, g, m, r)
    out = np.empty(np.broadcast_shapes(m.shape, r.shape))
    for code in codes:
        rows = schedule == code
        sizes = (p[rows], v[rows], g[rows], m[rows])
        out[..., rows] = _IN_FLIGHT[Schedule(code)](*sizes, r[..., rows])
    return out


ALL_AT_ONCE = (Schedule.GPIPE, Schedule.BREADTH_FIRST)
"""Schedules that run every forward pass before the first backward pass."""


def losses_in_flight(schedule: NDArray[np.int64], m: Value) -> Value:
    """Micro-batches whose logits wait for the backward pass: all when every forward pass comes
    first, else one."""
    waits = (schedule == ALL_AT_ONCE[0]) | (schedule == ALL_AT_ONCE[1])
    return np.where(waits, m, 1.0)
