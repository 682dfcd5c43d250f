"""ZB-H2 (ZB2P): weight gradients deferred until nothing idles, for twice the memory of 1F1B.

ZB-H2 steps its optimizer rank by rank and validates afterwards; ZB-H2-sync is the same order with
one optimizer step for all ranks.
Source: Qi et al. 2024 (Zero Bubble Pipeline Parallelism), sections 2.2 and 4, table 2.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..base.arrays import Value
from .operation_orders import Operations
from .schedule import Passes, Schedule, Sizes, most_held_back
from .zb_h1 import zero_bubble, zero_bubble_bytes


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """Qi et al. 2024, figure 3, bottom: 2 (p-r) - 1 forward passes first."""
    return zero_bubble(s, r, 2 * (s.p - r) - 1, held_back)


def _in_flight(s: Sizes[Value], r: Value) -> Value:
    """min(m, 2p - 1): Qi et al. 2024, table 2, with two that wait a rank further."""
    return np.minimum(s.m, 2 * s.p - 1) + 0 * r


def _idle(s: Sizes[Value], slowest: Passes, others: Passes) -> Value:
    """What the ranks before the slowest, taken for the last, take longer than it from their first
    start to their last end: rank r begins p - 1 - r forward passes before it.

    Ranks hold back as many weight gradients as make that least: h / w over the rank, where the
    first and the second last rank end together, or all that the slowest has.
    """
    each = others.mean(s.p - 1)
    hop = each.forward + each.input_gradient
    most = np.maximum(most_held_back(s), SCHEDULE.held_back)
    level = hop / np.maximum(each.weight_gradient, 1e-300)
    level = np.clip(level, SCHEDULE.held_back, most)
    late = np.minimum(*(_ends_late(s, slowest, each, held, hop) for held in (level, most)))
    return np.maximum(late, _fill_idle(s, slowest, each))


def _idle_sync(s: Sizes[Value], slowest: Passes, others: Passes) -> Value:
    """At least (p-1) f, for the last rank starts that much later; two are deferred a rank."""
    each = others.mean(s.p - 1)
    late = _ends_late(s, slowest, each, SYNC.held_back, each.input_gradient)
    return np.maximum(others.forward + late, _fill_idle(s, slowest, each))


def _ends_late(
    s: Sizes[Value], slowest: Passes, each: Passes, held_back: Value | int, hop: Value
) -> Value:
    """max over r < p-1 of (p-1-r) h + min(D r + 1, m) w - min(D (p-1) + 1, m) w', and 0; with h
    the seconds of a hop, D r the weight gradients that rank r holds back and w' the slowest's.

    The slowest rank never waits, so rank r's last input gradient is p - 1 - r of them after its
    own; then come the weight gradients that either held back (Qi et al. 2024, figure 3). Largest
    at the first rank, or where all m are held back.
    """
    last = np.maximum(s.p - 2, 0)
    whole = (s.m - 1) / held_back
    own = np.minimum(held_back * (s.p - 1) + 1, s.m) * slowest.weight_gradient
    out = np.zeros_like(own)
    for r in (0 * last, np.minimum(np.floor(whole), last), np.minimum(np.ceil(whole), last)):
        left = np.minimum(held_back * r + 1, s.m) * each.weight_gradient
        out = np.maximum(out, (s.p - 1 - r) * hop + left - own)
    return out


def _fill_idle(s: Sizes[Value], slowest: Passes, each: Passes) -> Value:
    """(p-1)(f + i) - (n-1) f, n = min(m, 2p - 1): what is left of the fill by the forward passes
    run meanwhile (Qi et al. 2024, figure 3). Of the slowest rank, or of a faster one, which has
    m d to spare where it is faster by d."""
    ahead = np.minimum(s.m, 2 * s.p - 1) - 1
    left = [s.m * one.total - ahead * one.forward for one in (slowest, each)]
    fill = (s.p - 1) * (each.forward + each.input_gradient)
    out: Value = fill + np.minimum(*left) - s.m * slowest.total
    return out


def _peak_bytes(s: Sizes[Value], r: Value, late: Value, a: Value, w: Value) -> Value:
    """(2 (p-r) - 1) A + D r W, likewise at most m (Qi et al. 2024, section 2.2)."""
    return zero_bubble_bytes(s, r, np.minimum(s.m, 2 * (s.p - r) - 1), late, a, w)


SCHEDULE = Schedule(
    name="zb-h2",
    source="Qi et al. 2024, section 2.2",
    order=_order,
    in_flight=_in_flight,
    aliases=("zb-2p",),
    idle=_idle,
    idle_grows=False,
    peak_bytes=_peak_bytes,
    held_back=2,
    fills_drain=True,
    steps_apart=True,
)
SYNC = replace(
    SCHEDULE,
    name="zb-h2-sync",
    source="Qi et al. 2024, section 4",
    aliases=(),
    idle=_idle_sync,
    fills_drain=False,
    steps_apart=False,
)
