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
from .schedule import Passes, Schedule, Sizes
from .zb_h1 import held_zero_bubble, zero_bubble


def _order(s: Sizes[int], r: int, held_back: int) -> Operations:
    """Qi et al. 2024, figure 3, bottom: 2 (p-r) - 1 forward passes first."""
    return zero_bubble(s, r, 2 * (s.p - r) - 1, held_back * r)


def _in_flight(s: Sizes[Value], r: Value) -> Value:
    """min(m, 2p - 1): Qi et al. 2024, table 2, with two that wait a rank further."""
    return np.minimum(s.m, 2 * s.p - 1) + 0 * r


def _idle(s: Sizes[Value], slowest: Passes, others: Passes) -> Value:
    """max(0, (p-1)(f + i) - (n-1) f, (p-1)(f + i) - (m-1) w), n = min(m, 2p - 1).

    What is left of the fill by the forward passes run meanwhile, and of the drain by the weight
    gradients there are: Qi et al. 2024, table 2, (p-1)(f + i - 2w), and as many as fill the drain.
    """
    ends = others.forward + others.input_gradient
    fill = ends - (np.minimum(s.m, 2 * s.p - 1) - 1) * slowest.forward
    return np.maximum(np.maximum(fill, ends - (s.m - 1) * slowest.weight_gradient), 0.0)


def _idle_sync(s: Sizes[Value], slowest: Passes, others: Passes) -> Value:
    """At least (p-1) f more, for the last rank starts that much later; two are deferred a rank."""
    q = np.minimum(s.m, 2 * s.p - 1)
    left = np.maximum(s.p - 1 - np.ceil((q - 1) / 2), 0.0) / np.maximum(s.p - 1, 1)
    drain = others.input_gradient - (q - 1) * slowest.weight_gradient
    late = others.forward + np.maximum(drain, left * others.input_gradient)
    ends = others.forward + others.input_gradient
    return np.maximum(late, ends - (q - 1) * slowest.forward)


def _held(s: Sizes[Value], r: Value, late: Value, a: Value, w: Value) -> Value:
    """(2 (p-r) - 1) A + D r W, likewise at most m (Qi et al. 2024, section 2.2)."""
    return held_zero_bubble(s, np.minimum(s.m, 2 * (s.p - r) - 1), late * r, a, w)


SCHEDULE = Schedule(
    name="zb-h2",
    source="Qi et al. 2024, section 2.2",
    order=_order,
    in_flight=_in_flight,
    aliases=("zb-2p",),
    idle=_idle,
    idle_grows=False,
    held=_held,
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
