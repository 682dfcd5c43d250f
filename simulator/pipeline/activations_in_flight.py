"""How many micro-batches does a pipeline rank keep, and how many bytes of them?

Legend: p pipeline ranks, v chunks a rank holds, m micro-batches, g micro-batches of a group,
r rank from 0, D weight gradients that rank r holds back, over r; A bytes a micro-batch keeps on a
rank, W bytes it still keeps once only its weight gradient is missing.
Source: Huang et al. 2019; Narayanan et al. 2021, section 2; Qi et al. 2024, table 1 and section 4;
the moments of the peaks are those of the event simulation, which these equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value, codes_in
from .schedule_names import Schedule


class Sizes(NamedTuple):
    """Of pipelines [row]; the rank may have a leading axis of ranks [class, row]."""

    p: Value
    v: Value
    g: Value
    m: Value
    r: Value

    def take(self, rows: NDArray[np.bool_]) -> Sizes:
        return Sizes(*(part[..., rows] for part in self))


def _in_flight_gpipe(s: Sizes) -> Value:
    return s.m + 0 * s.r


def _in_flight_1f1b(s: Sizes) -> Value:
    return np.minimum(s.m, s.p - s.r)


def _in_flight_interleaved(s: Sizes) -> Value:
    return np.minimum(s.m, ((s.v - 1) * s.g + 2 * (s.p - s.r - 1) + 1) / s.v)


def _in_flight_naive(s: Sizes) -> Value:
    return 1.0 + 0 * (s.m + s.r)


def _in_flight_zb_h1(s: Sizes) -> Value:
    return np.minimum(s.m, s.p) + 0 * s.r


def _in_flight_zb_h2(s: Sizes) -> Value:
    return np.minimum(s.m, 2 * s.p - 1) + 0 * s.r


def _in_flight_dual(s: Sizes) -> Value:
    return np.minimum(s.m, s.p + 1) + 0 * s.r


def _in_flight_dual_v(s: Sizes) -> Value:
    return np.minimum(s.m, s.p + 0.5) + 0 * s.r


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


def in_flight(schedule: NDArray[np.int64], sizes: Sizes) -> Value:
    """Micro-batches whose activations rank r keeps at its peak, in units of its whole share.

        GPipe, breadth-first m;  naive 1;  1F1B min(m, p - r);
        interleaved min(m, [(v-1) g + 2 (p-r-1) + 1] / v);  ZB-H1, ZB-V min(m, p);
        ZB-H2 min(m, 2p - 1);  DualPipe min(m, p + 1);  DualPipeV min(m, p + 1/2)

    Those that only lack a weight gradient are counted, two a rank further for ZB-H2. DualPipe's
    share of a rank is the mean of its two stages.
    """
    codes = codes_in(schedule)
    if len(codes) == 1:
        return _IN_FLIGHT[Schedule(codes[0])](sizes)
    out = np.empty(np.broadcast_shapes(sizes.m.shape, sizes.r.shape))
    for code in codes:
        rows = schedule == code
        out[..., rows] = _IN_FLIGHT[Schedule(code)](sizes.take(rows))
    return out


def _held_zero_bubble(s: Sizes, whole: Value, deferred: Value, a: Value, w: Value) -> Value:
    late = np.minimum(deferred * s.r, s.m - whole)
    return whole * a + late * w + np.maximum(w - a, 0.0)


def _held_zb_h1(s: Sizes, deferred: Value, a: Value, w: Value) -> Value:
    return _held_zero_bubble(s, np.minimum(s.m, s.p - s.r), np.ones_like(s.m), a, w)


def _held_zb_h2(s: Sizes, deferred: Value, a: Value, w: Value) -> Value:
    return _held_zero_bubble(s, np.minimum(s.m, 2 * (s.p - s.r) - 1), deferred, a, w)


def _held_zb_h2_sync(s: Sizes, deferred: Value, a: Value, w: Value) -> Value:
    return _held_zb_h2(s, np.full_like(s.m, 2.0), a, w)


def _held_zb_v(s: Sizes, deferred: Value, a: Value, w: Value) -> Value:
    filled = s.p * a + np.maximum(w - a, 0.0) / 2
    return np.maximum(filled, (s.r + 0.5) * w + (s.p - s.r - 1) / 2 * a)


def _held_dual(stages: Value, place: Value, a: Value, w: Value) -> Value:
    filled = (stages - 1) * a + np.maximum(2 * a, w * (place < stages / 2 - 1))
    return np.maximum(filled, (place + 1) * w + (stages / 2 - 1 - place) * a)


def _held_dualpipe(s: Sizes, deferred: Value, a: Value, w: Value) -> Value:
    return _held_dual(s.p, np.minimum(s.r, s.p - 1 - s.r), a, w)


def _held_dualpipe_v(s: Sizes, deferred: Value, a: Value, w: Value) -> Value:
    return _held_dual(2 * s.p, s.r, a / 2, w / 2)


_HELD = {
    Schedule.ZB_H1: _held_zb_h1,
    Schedule.ZB_H2: _held_zb_h2,
    Schedule.ZB_H2_SYNC: _held_zb_h2_sync,
    Schedule.ZB_V: _held_zb_v,
    Schedule.DUALPIPE: _held_dualpipe,
    Schedule.DUALPIPE_V: _held_dualpipe_v,
}
"""Bytes under the schedules that defer weight gradients."""


def held_bytes(
    schedule: NDArray[np.int64], sizes: Sizes, deferred: Value, a: Value, w: Value
) -> Value:
    """Bytes of activations rank r keeps at its peak [class, row]; `deferred` is D [row].

    ZB-H1     (p-r) A + r W, and W - A more where W is larger; at most m micro-batches
    ZB-H2     (2(p-r) - 1) A + D r W, likewise
    ZB-V      the larger of p A (+ (W-A)/2) and (r + 1/2) W + (p-r-1)/2 A
    DualPipe  of P stages, with A, W of one, the largest of (P+1) A, (P-1) A + W, not on
              the ranks in the middle, and (r+1) W + (P/2-1-r) A
    all others  A times `in_flight`
    """
    out = in_flight(schedule, sizes) * a
    for code in codes_in(schedule):
        if code in _HELD:
            rows = schedule == code
            held = _HELD[Schedule(code)]
            out[..., rows] = held(sizes.take(rows), deferred[rows], a[..., rows], w[..., rows])
    return out


ALL_AT_ONCE = (Schedule.GPIPE, Schedule.BREADTH_FIRST)
"""Schedules that run every forward pass before the first backward pass."""


def losses_in_flight(schedule: NDArray[np.int64], m: Value) -> Value:
    """Micro-batches whose logits wait for the backward pass: all when every forward pass comes
    first, else one."""
    all_wait = [code for code in codes_in(schedule) if code in ALL_AT_ONCE]
    return np.where(np.isin(schedule, all_wait), m, 1.0) if all_wait else np.ones(m.shape)
