"""Breadth-first: all micro-batches through a chunk, then the next chunk; v chunks a rank in turn.

Idle seconds are a chunk of every other rank, (p-1)(f + i + w) / v: Lamy-Poirier 2023.
"""

from __future__ import annotations

from .gpipe import in_flight
from .operation_orders import NONE, Operations, grouped, weave
from .schedule import SEVERAL, Schedule, Sizes, fills_pipeline, one_exchange_a_chunk


def _order(s: Sizes[int], r: int, held_back: int) -> Operations:
    """One group of all micro-batches (Lamy-Poirier 2023)."""
    return weave(*grouped(s.p, s.v, s.m, r, s.m), NONE, s.m * s.v, 0)


SCHEDULE = Schedule(
    name="breadth-first",
    source="Lamy-Poirier 2023",
    order=_order,
    in_flight=in_flight,
    chunks=SEVERAL,
    steady_sends=one_exchange_a_chunk,
    forward_first=True,
    conditions=(fills_pipeline("breadth-first-micro-batches", 1),),
    frameworks={"torchtitan": "LoopedBFS"},
)
