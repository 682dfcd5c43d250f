"""Breadth-first: all micro-batches through a chunk, then the next chunk; v chunks a rank in turn.

Idle seconds are a chunk of every other rank, (p-1)(f + i + w) / v: Lamy-Poirier 2023.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from .gpipe import in_flight
from .operation_orders import NO_PASSES, Operations, grouped_passes, weave
from .schedule import SEVERAL_CHUNKS, Schedule, Sizes, fills_pipeline


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """One group of all micro-batches (Lamy-Poirier 2023)."""
    return weave(*grouped_passes(s.p, s.v, s.m, r, s.m), NO_PASSES, s.m * s.v, 0)


def _steady_sends(s: Sizes[Value]) -> Value:
    """2 (m-1) v: a tensor forward and one backward for each chunk of each further micro-batch; of
    the only p micro-batches, all but 2 (p - 1) are among the turns."""
    return np.where(s.m <= s.p, 2 * (s.p - 1), 2 * (s.m - 1) * s.v)


SCHEDULE = Schedule(
    name="breadth-first",
    source="Lamy-Poirier 2023",
    order=_order,
    in_flight=in_flight,
    chunks=SEVERAL_CHUNKS,
    steady_sends=_steady_sends,
    turns=lambda s: (s.m, s.m),
    uneven_paths=True,
    chunk_turn=lambda s: s.m,
    forward_first=True,
    conditions=(fills_pipeline("breadth-first-micro-batches", 1),),
    frameworks={"torchtitan": "LoopedBFS"},
)
