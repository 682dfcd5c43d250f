"""DualPipeV: DualPipe cut in half, two chunks a rank in a V and one copy of the model.

Source: the DualPipe repository (dualpipev.py and its README).
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from .dualpipe import idle_stages, peak_stage_bytes, phases
from .operation_orders import Operations, TwoSided
from .schedule import TWO_CHUNKS, Passes, Placement, Schedule, Sizes, fills_pipeline


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """Both directions on one rank."""
    return phases(TwoSided((r, 2 * s.p - 1 - r), (0, 0)), s.p, r, s.m)


def _in_flight(s: Sizes[Value], r: Value) -> Value:
    """min(m, p + 1/2): 2p + 1 stages of two a rank (the DualPipe repository)."""
    return np.minimum(s.m, s.p + 0.5) + 0 * r


def _idle(s: Sizes[Value], slowest: Passes, others: Passes) -> Value:
    """Of 2p stages."""
    mean = others.mean(2 * (s.p - 1))
    weight = slowest.weight_gradient / 2
    return idle_stages(s.p, mean, slowest.total - 2 * mean.total, weight)


def _steady_sends(s: Sizes[Value]) -> Value:
    """2 (1 + 1/p)(m - 2p) + 3p - 7/2, as simulated with equal passes."""
    return 2 * (1 + 1 / s.p) * (s.m - 2 * s.p) + 3 * s.p - 3.5


def _sends(s: Sizes[Value]) -> Value:
    """2 (p-1) m / p + 2 (p-2), as simulated with equal passes."""
    return 2 * (s.p - 1) * (s.m / s.p + 1) - 2


def _peak_bytes(s: Sizes[Value], r: Value, late: Value, a: Value, w: Value) -> Value:
    """Of 2p stages, each half a rank's."""
    return peak_stage_bytes(2 * s.p, r, a / 2, w / 2)


SCHEDULE = Schedule(
    name="dualpipe-v",
    source="DualPipe repository",
    order=_order,
    in_flight=_in_flight,
    placement=Placement.V_SHAPED,
    chunks=TWO_CHUNKS,
    idle=_idle,
    idle_grows=False,
    hidden_sends=_sends,
    steady_sends=_steady_sends,
    peak_bytes=_peak_bytes,
    pairs=True,
    conditions=(fills_pipeline("deep-schedule-micro-batches", 2, to_run=True),),
    frameworks={"torchtitan": "DualPipeV"},
)
