"""GPipe: all forward passes, then all backward passes, last micro-batch first.

Idle seconds are a pass of every other rank, (p-1)(f + i + w): Huang et al. 2019, section 2.3,
whose share of a step is (p-1) / (m + p - 1). The logits of all micro-batches wait.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from .operation_orders import NO_PASSES, Operations, Pass, passes, weave
from .schedule import Schedule, Sizes


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """Huang et al. 2019, figure 2c."""
    micro = np.arange(s.m)
    backward = passes(Pass.BACKWARD, r, micro[::-1])
    return weave(passes(Pass.FORWARD, r, micro), backward, NO_PASSES, s.m, 0)


def in_flight(s: Sizes[Value], r: Value) -> Value:
    """m (Huang et al. 2019, section 2.3)."""
    return s.m + 0 * r


SCHEDULE = Schedule(
    name="gpipe",
    source="Huang et al. 2019, section 2.3",
    order=_order,
    in_flight=in_flight,
    forward_first=True,
    frameworks={"torchtitan": "GPipe", "nanotron": "afab"},
)
