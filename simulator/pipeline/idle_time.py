"""How long do the ranks of a pipeline idle, and how many sends show? Closed forms by schedule.

Source: Huang et al. 2019 (GPipe); Narayanan et al. 2021, section 2 (1F1B, interleaved);
Lamy-Poirier 2023 (breadth-first); Qi et al. 2024 (zero bubble); DeepSeek-AI 2024 (DualPipe).
Legend: p pipeline ranks, v chunks a rank holds, m micro-batches, g micro-batches of a group;
f, i, w seconds per micro-batch of a rank's forward pass, input gradient and weight gradient.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value, codes_in
from .schedule_names import Schedule


class Passes(NamedTuple):
    """Seconds per micro-batch of the passes of a rank, or of several ranks together."""

    forward: Value
    input_gradient: Value
    weight_gradient: Value

    @property
    def total(self) -> Value:
        return self.forward + self.input_gradient + self.weight_gradient

    def over(self, count: Value) -> Passes:
        """The mean of `count` of them."""
        return Passes(*(part / np.maximum(count, 1) for part in self))

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


def _idle_zb_v(p: Value, m: Value, slowest: Passes, others: Passes) -> Value:
    n = np.maximum(p - 1, 1)
    f, i, w = others.over(2 * n)
    fill = 2 * n * f - np.minimum(n * (i + w), np.minimum((2 * n + 1) * w, f - i + 2 * n * w))
    drain = np.maximum(2 * n * (i - w), i + (p - 2) * w - n * f)
    unequal = np.maximum((p - 2) * np.maximum(w - f, f - i), n * (i - f))
    return np.maximum(np.maximum(fill, drain), unequal)


def _idle_dual(half: Value, others: Passes) -> Value:
    """`others`: of one stage of two times `half`, on average."""
    f, i, w = others
    n = half - 1
    return np.maximum(2 * n * f, (n - 1) * f + n * i) + n * np.maximum(i - w, 0.0)


def _idle_dualpipe(p: Value, m: Value, slowest: Passes, others: Passes) -> Value:
    return _idle_dual(p / 2, others.over(p - 1))


def _idle_dualpipe_v(p: Value, m: Value, slowest: Passes, others: Passes) -> Value:
    return _idle_dual(p, others.over(2 * (p - 1)))


IDLE = {
    Schedule.NAIVE: _idle_naive,
    Schedule.ZB_H1: _idle_zb_h1,
    Schedule.ZB_H2: _idle_zb_h2,
    Schedule.ZB_H2_SYNC: _idle_zb_h2_sync,
    Schedule.ZB_V: _idle_zb_v,
    Schedule.DUALPIPE: _idle_dualpipe,
    Schedule.DUALPIPE_V: _idle_dualpipe_v,
}
"""Idle seconds of schedules whose idle time is not a share of what other ranks do."""


MOST_DEFERRED = 1000
"""Bound of what ZB-H2 holds back, over the rank, when weight gradients take next to no time."""


def deferred(longest: Value, weight_gradient: Value) -> Value:
    """Weight gradients ZB-H2 holds back, over the rank, so that none is missing in the drain: as
    many as fill the longest forward pass and input gradient, and at least the published two."""
    out: Value = np.ceil(longest / np.maximum(weight_gradient, 1e-300))
    return np.minimum(np.maximum(out, 2.0), MOST_DEFERRED)


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

    With f, i, w the seconds of one chunk (half a rank's) and m >= 2p, ZB-V idles the largest of

        2(p-1)(i-w);  (p-1)(2f-i-w);  2(p-1)f - (2p-1)w;  (2p-3)f + i - 2(p-1)w;
        i + (p-2)w - (p-1)f;  (p-2)(w-f);  (p-2)(f-i);  (p-1)(i-f)

    which is 0 when all are equal, and with one stage's, n = half the stages - 1, DualPipe(V)

        max(2nf, (n-1)f + ni) + n max(i-w, 0), the published n (F&B + B - 3W) when all are equal

    ZB-H2 and ZB-V step their optimizer rank by rank, and ZB-H2 defers as many weight gradients
    as it needs. Of uneven stages the other ranks' mean stands for each of them.
    Source: Qi et al. 2024, tables 1 and 2, (p-1)(f+i-w) and (p-1)(f+i-2w); DualPipe repository;
    the conditions, and ZB-V, are those of the event simulation, which these equal.
    """
    out = usual
    for code in codes_in(schedule):
        if code in IDLE:
            rows = schedule == code
            own, rest = slowest.take(rows), others.take(rows)
            out = out.copy() if out is usual else out
            out[rows] = IDLE[Schedule(code)](p[rows], m[rows], own, rest)
    return out


def exposed_hops(
    p: Value, v: Value, g: Value, m: Value, overlapped: Value, contention: float = 0.0
) -> Value:
    """Sends on the critical path of a step, each one boundary tensor.

        overlapped turns(p, v, g, m);  1F1B 2 (p - 1) + 2 (p - 1) m / p - 2;  else + (m - 1) v

    The first micro-batch waits for every boundary on its way up and down. In the steady state of
    1F1B the p micro-batches in flight each make a round trip of 2 (p - 1) hops per p of them;
    interleaved stages exchange both directions once a chunk, of which only `contention` shows
    when overlapped. So the exposed volume lies between one micro-batch's and the whole batch's
    boundary activations (ledger T8). Of 1F1B and interleaved stages.
    """
    steady = np.where(v > 1, (m - 1) * v, np.maximum(2 * (p - 1) * m / p - 2, 0.0))
    shown = 1 - overlapped * (1 - contention)
    out: Value = (turns(p, v, g, m) + steady * shown) * (p > 1)
    return out


def turns(p: Value, v: Value, g: Value, m: Value) -> Value:
    """Sends that the first and the last micro-batch of interleaved stages wait for.

        2 (p - 1) + (v - 1) p ([first group is p] + [last group is p])

    A group of p micro-batches is back at the first rank just when that turns to its next chunk,
    so each boundary on the way shows; a longer group comes back in time.
    """
    last = np.where(m % g > 0, m % g, g)
    out: Value = 2 * (p - 1) + (v - 1) * p * (1.0 * (g <= p) + (last <= p))
    return out


def round_trips(schedule: NDArray[np.int64], p: Value, v: Value, g: Value, m: Value) -> Value:
    """Sends on the critical path that overlap cannot hide, each one boundary tensor.

        1F1B 2 (p-1)(1 + m/p) - 2;  interleaved `turns`;  GPipe, breadth-first 2 (p-1)
        naive 2 (p-1) m;  ZB-H1 4 (p-1);  ZB-H2 2 (p-1);  ZB-V 6 (p-1) - 2
        DualPipe (p-1) m / p + max(3 p / 2 - 3, 1);  DualPipeV 2 (p-1) m / p + 2 (p-2)

    Those of the event simulation with sends beside compute, for m >= p and equal passes.
    """
    there, s = 2 * (p - 1), Schedule
    trips = {
        s.NAIVE: there * m,
        s.ZB_H1: there * np.minimum(m, 2.0),
        s.INTERLEAVED: turns(p, v, g, m),
        s.ZB_V: 3 * there - 2,
        s.DUALPIPE: there * m / (2 * p) + np.maximum(1.5 * p - 3, 1),
        s.DUALPIPE_V: there * (m / p + 1) - 2,
    }
    return np.select([schedule == code for code in trips], list(trips.values()), there + 0 * m)


def sends(
    schedule: NDArray[np.int64],
    p: Value,
    v: Value,
    g: Value,
    m: Value,
    overlapped: Value,
    contention: float = 0.0,
) -> Value:
    """Sends on the critical path of a step of any schedule, each one boundary tensor."""
    out = exposed_hops(p, v, g, m, overlapped, contention)
    codes = codes_in(schedule)
    if codes[-1] <= Schedule.INTERLEAVED:
        return out
    other = schedule > Schedule.INTERLEAVED
    shown = (1 - overlapped * (1 - contention)) * (v > 1)
    rest = (round_trips(schedule, p, v, g, m) + (m - 1) * v * shown) * (p > 1)
    return np.where(other, rest, out)
