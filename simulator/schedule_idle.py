"""How long do the ranks of a pipeline idle, and how many sends show? Closed forms by schedule.

Legend: p pipeline ranks, v chunks a rank holds, m micro-batches; f, i, w seconds per micro-batch
of a rank's forward pass, input gradient and weight gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .plan import Schedule, codes_in
from .schedules import exposed_hops

Value = NDArray[np.float64]


class Passes(NamedTuple):
    """Seconds per micro-batch of the passes of a rank, or of several ranks together."""

    forward: Value
    input_gradient: Value
    weight_gradient: Value

    @property
    def total(self) -> Value:
        return self.forward + self.input_gradient + self.weight_gradient

    def take(self, rows: NDArray[np.bool_]) -> Passes:
        return Passes(*(part[rows] for part in self))


def _idle_naive(p: Value, m: Value, slowest: Passes, others: Passes) -> Value:
    return m * others.total


def _idle_zb_h1(p: Value, m: Value, slowest: Passes, others: Passes) -> Value:
    q = np.minimum(m, p)
    short = (p - q) / np.maximum(p - 1, 1)
    f, i = others.forward, others.input_gradient
    hidden = (q - 1) / np.maximum(p - 1, 1) * others.weight_gradient
    return np.maximum(f + np.maximum(i - hidden, short * i), i + short * f)


def _idle_zb_h2(p: Value, m: Value, slowest: Passes, others: Passes) -> Value:
    ends = others.forward + others.input_gradient
    fill = ends - (np.minimum(m, 2 * p - 1) - 1) * slowest.forward
    return np.maximum(np.maximum(fill, ends - (m - 1) * slowest.weight_gradient), 0.0)


def _idle_zb_h2_sync(p: Value, m: Value, slowest: Passes, others: Passes) -> Value:
    q = np.minimum(m, 2 * p - 1)
    left = np.maximum(p - 1 - np.ceil((q - 1) / 2), 0.0) / np.maximum(p - 1, 1)
    drain = others.input_gradient - (q - 1) * slowest.weight_gradient
    late = others.forward + np.maximum(drain, left * others.input_gradient)
    ends = others.forward + others.input_gradient
    return np.maximum(late, ends - (q - 1) * slowest.forward)


IDLE = {
    Schedule.NAIVE: _idle_naive,
    Schedule.ZB_H1: _idle_zb_h1,
    Schedule.ZB_H2: _idle_zb_h2,
    Schedule.ZB_H2_SYNC: _idle_zb_h2_sync,
}
"""Idle seconds of schedules whose idle time is not a share of what other ranks do."""
EVENTS_ONLY = (Schedule.ZB_V, Schedule.DUALPIPE, Schedule.DUALPIPE_V)
"""Schedules without a closed form for stages of any length; the event simulation has them."""


def idle_seconds(
    schedule: NDArray[np.int64], p: Value, m: Value, slowest: Passes, others: Passes, usual: Value
) -> Value:
    """Seconds the slowest rank idles in a step; `others` are all other ranks together.

    With f, i, w the seconds of forward, input and weight gradient on p uniform ranks:

        1F1B, GPipe (p-1)(f+i+w);  interleaved, breadth-first that over v (`usual`)
        naive m (p-1)(f+i+w)
        ZB-H1, m >= p:  (p-1) max(f + max(i-w, 0), i)
        ZB-H2:          max(0, (p-1)(f+i) - (n-1) f, (p-1)(f+i) - (m-1) w),  n = min(m, 2p-1)
        ZB-H2-sync:     at least (p-1) f more, for the last rank starts that much later

    ZB-H2 steps its optimizer rank by rank and defers as many weight gradients as it needs.
    Source: Qi et al. 2024, tables 1 and 2, (p-1)(f+i-w) and (p-1)(f+i-2w); the conditions are
    those of the event simulation, which these equal.
    """
    out = usual
    for code in codes_in(schedule):
        if code in IDLE:
            rows = schedule == code
            own, rest = slowest.take(rows), others.take(rows)
            out = out.copy() if out is usual else out
            out[rows] = IDLE[Schedule(code)](p[rows], m[rows], own, rest)
    return out


def round_trips(schedule: NDArray[np.int64], p: Value, v: Value, m: Value) -> Value:
    """Sends on the critical path that overlap cannot hide, each one boundary tensor.

        1F1B 2 (p-1)(1 + m/p) - 2;  interleaved 2 (p v - 1);  GPipe, breadth-first 2 (p-1)
        naive 2 (p-1) m;  ZB-H1 4 (p-1);  ZB-H2 2 (p-1)

    Those of the event simulation with sends beside compute, for m >= p.
    """
    return np.select(
        [schedule == Schedule.NAIVE, schedule == Schedule.ZB_H1, schedule == Schedule.INTERLEAVED],
        [2 * (p - 1) * m, 2 * (p - 1) * np.minimum(m, 2.0), 2 * (p * v - 1)],
        2 * (p - 1) + 0 * m,
    )


def sends(
    schedule: NDArray[np.int64],
    p: Value,
    v: Value,
    m: Value,
    overlapped: Value,
    contention: float = 0.0,
) -> Value:
    """Sends on the critical path of a step of any schedule, each one boundary tensor."""
    out = exposed_hops(p, v, m, overlapped, contention)
    codes = codes_in(schedule)
    if codes[-1] <= Schedule.INTERLEAVED:
        return out
    other = schedule > Schedule.INTERLEAVED
    shown = (1 - overlapped * (1 - contention)) * (v > 1)
    rest = (round_trips(schedule, p, v, m) + (m - 1) * v * shown) * (p > 1)
    return np.where(other, rest, out)
