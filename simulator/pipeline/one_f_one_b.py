"""1F1B with a flush: p - r - 1 forward passes to warm up, then one forward and one backward each.

Idle seconds are a pass of every other rank, (p-1)(f + i + w), as of GPipe: Narayanan et al. 2021,
section 2.2.1, equation of the bubble fraction (p-1) / m.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from .operation_orders import NO_PASSES, Operations, Pass, passes, weave
from .schedule import Schedule, Sizes


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """Narayanan et al. 2021, figure 3; Megatron-LM's warm-up of p - r - 1."""
    micro = np.arange(s.m)
    forward, backward = passes(Pass.FORWARD, r, micro), passes(Pass.BACKWARD, r, micro)
    return weave(forward, backward, NO_PASSES, s.p - r, 0)


def _in_flight(s: Sizes[Value], r: Value) -> Value:
    """min(m, p - r): Narayanan et al. 2021, section 2.2.1."""
    return np.minimum(s.m, s.p - r)


def _steady_sends(s: Sizes[Value]) -> Value:
    """2 (p-1) m / p - 2: the p micro-batches in flight each make a round trip of 2 (p-1) hops per p
    of them, less the turn at the last rank; as simulated with equal passes."""
    return np.maximum(2 * (s.p - 1) * s.m / s.p - 2, 0.0)


SCHEDULE = Schedule(
    name="1f1b",
    source="Narayanan et al. 2021, section 2.2.1",
    order=_order,
    in_flight=_in_flight,
    steady_sends=_steady_sends,
    needs_stages=False,
    frameworks={
        "megatron-core": "forward_backward_pipelining_without_interleaving",
        "torchtitan": "1F1B",
        "deepspeed": "TrainSchedule",
        "nanotron": "1f1b",
    },
)
