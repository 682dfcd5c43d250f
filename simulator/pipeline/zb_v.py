"""ZB-V: zero bubble with two chunks a rank, placed in a V, within the memory of 1F1B.

Source: Qi et al. 2024 b (Pipeline Parallelism with Controllable Memory), V-ZB.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from .operation_orders import Operations, Pass, TwoSided
from .schedule import TWO_CHUNKS, Passes, Placement, Schedule, Sizes, fills_pipeline
from .zb_h1 import in_flight


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """Fill both chunks, then each in turn forward, input and weight gradient; drain both."""
    rank, n, left = TwoSided((r, 2 * s.p - 1 - r), (0, 0)), max(s.m, 2 * s.p), s.p - r
    for _ in range(2 * left - 1):
        rank.add(Pass.FORWARD, 0)
    for _ in range(r):
        rank.add(Pass.FORWARD, 1)
        rank.add(Pass.FORWARD, 0)
    for _ in range(left):
        rank.add(Pass.FORWARD, 1)
        rank.both_gradients(1)
    while rank.done[Pass.FORWARD][1] < n:
        if rank.done[Pass.FORWARD][0] < n:
            rank.add(Pass.FORWARD, 0)
        rank.both_gradients(0)
        rank.add(Pass.FORWARD, 1)
        rank.both_gradients(1)
    for _ in range(r):
        rank.add(Pass.INPUT, 0)
        rank.add(Pass.INPUT, 1)
    for _ in range(left):
        rank.both_gradients(0)
    while rank.waiting:
        rank.weights()
    return rank.array(s.m)


def _idle(s: Sizes[Value], slowest: Passes, others: Passes) -> Value:
    """The largest of eight, with f, i, w of one chunk (half a rank's) and m >= 2p:

        2(p-1)(i-w);  (p-1)(2f-i-w);  2(p-1)f - (2p-1)w;  (2p-3)f + i - 2(p-1)w;
        i + (p-2)w - (p-1)f;  (p-2)(w-f);  (p-2)(f-i);  (p-1)(i-f)

    which is 0 when all are equal (Qi et al. 2024 b); the others are those of the event
    simulation, which these equal. A rank slower by d waits (m-1) d less, for one micro-batch fills
    and drains the V through it, but (p-1)(i-w) for gradients, where w is its own, which it has to
    do meanwhile; below five ranks another 5-p of their excess less: so the event simulation, within
    1.5 % of a step.
    """
    n = np.maximum(s.p - 1, 1)
    f, i, w = others.mean(2 * n)
    fill = 2 * n * f - np.minimum(n * (i + w), np.minimum((2 * n + 1) * w, f - i + 2 * n * w))
    drain = np.maximum(2 * n * (i - w), i + (s.p - 2) * w - n * f)
    unequal = np.maximum((s.p - 2) * np.maximum(w - f, f - i), n * (i - f))
    equal = np.maximum(np.maximum(fill, drain), unequal)
    own_w = slowest.weight_gradient / 2
    own = n * (i - own_w) - np.maximum(4 - n, 0) * np.maximum(own_w - w, 0.0)
    slack = (s.m - 1) * (slowest.total - others.total / n)
    out: Value = np.maximum(np.maximum(equal - np.maximum(slack, 0.0), own), 0.0)
    return out


def _steady_sends(s: Sizes[Value]) -> Value:
    """2 (m - p) v - 1: the first p micro-batches exchange while they wait anyway. Four more show
    where all passes are equal, which is rare."""
    return np.maximum(2 * (s.m - s.p) * s.v - 1, 0.0)


def _sends(s: Sizes[Value]) -> Value:
    """6 (p-1) - 2: down and up the V and back to the top, but for the turns on one rank, as
    simulated with equal passes."""
    return 3 * (2 * (s.p - 1)) - 2 + 0 * s.m


def _end_sends(s: Sizes[Value]) -> tuple[Value, Value]:
    """4 (p-1); 2 m - (3 p - 1) / 2: the first rank begins and ends the V, so that it exchanges one
    tensor a chunk where the others exchange two. As simulated with a longer first rank."""
    return 4 * (s.p - 1) + 0 * s.m, np.maximum(2 * s.m - (3 * s.p - 1) / 2, 0.0)


def _peak_bytes(s: Sizes[Value], r: Value, late: Value, a: Value, w: Value) -> Value:
    """The larger of p A (+ (W-A)/2) and (r + 1/2) W + (p-r-1)/2 A: p A is Qi et al. 2024 b, V-ZB,
    the rest follows from its order."""
    filled = s.p * a + np.maximum(w - a, 0.0) / 2
    return np.maximum(filled, (r + 0.5) * w + (s.p - r - 1) / 2 * a)


SCHEDULE = Schedule(
    name="zb-v",
    source="Qi et al. 2024 b",
    order=_order,
    in_flight=in_flight,
    placement=Placement.V_SHAPED,
    chunks=TWO_CHUNKS,
    idle=_idle,
    idle_grows=False,
    hidden_sends=_sends,
    steady_sends=_steady_sends,
    end_sends=_end_sends,
    peak_bytes=_peak_bytes,
    steps_apart=True,
    conditions=(fills_pipeline("deep-schedule-micro-batches", 2),),
    frameworks={"torchtitan": "ZBVZeroBubble"},
)
