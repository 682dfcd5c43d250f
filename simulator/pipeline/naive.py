"""Naive model parallelism: one micro-batch at a time; one rank works, the others wait.

Source: Huang et al. 2019 (GPipe), figure 2b.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from .operation_orders import NO_PASSES, Operations, Pass, passes, weave
from .schedule import Passes, Schedule, Sizes


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """A forward and a backward pass in turn."""
    micro = np.arange(s.m)
    backward = passes(Pass.BACKWARD, r, micro)
    return weave(passes(Pass.FORWARD, r, micro), backward, NO_PASSES, 1, 0)


def _in_flight(s: Sizes[Value], r: Value) -> Value:
    """One."""
    return 1.0 + 0 * (s.m + r)


def _idle(s: Sizes[Value], slowest: Passes, others: Passes) -> Value:
    """m (p-1)(f + i + w): every pass of all others (Huang et al. 2019, figure 2b)."""
    return s.m * others.total


def _sends(s: Sizes[Value]) -> Value:
    """2 (p-1) m: every micro-batch goes down and up on its own."""
    return 2 * (s.p - 1) * s.m


SCHEDULE = Schedule(
    name="naive",
    source="Huang et al. 2019, figure 2b",
    order=_order,
    in_flight=_in_flight,
    idle=_idle,
    hidden_sends=_sends,
)
