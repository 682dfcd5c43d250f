"""Interleaved 1F1B: v chunks a rank, placed in turn; groups of micro-batches run through a chunk.

Idle seconds are a chunk of every other rank, (p-1)(f + i + w) / v: Narayanan et al. 2021, section
2.2.2. Where chunks differ, the longest paths of `uneven_chunks`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..base.arrays import Value
from .operation_orders import NO_PASSES, Operations, grouped_passes, weave
from .schedule import SEVERAL_CHUNKS, Condition, Schedule, Sizes


def _order(s: Sizes[int], r: int, held_back: float) -> Operations:
    """2 (p-r-1) + (v-1) g forward passes to warm up (Megatron-LM), then one forward and one
    backward pass each."""
    ahead = 2 * (s.p - r - 1) + (s.v - 1) * s.g + 1
    return weave(*grouped_passes(s.p, s.v, s.m, r, s.g), NO_PASSES, ahead, 0)


def _in_flight(s: Sizes[Value], r: Value) -> Value:
    """min(m, [(v-1) g + 2 (p-r-1) + 1] / v): the warm-up and one more, of v chunks.

    On the first rank, with g = p, p (1 + (p-1) / (p v)): Korthikanti et al. 2022, equation 6.
    """
    return np.minimum(s.m, ((s.v - 1) * s.g + 2 * (s.p - r - 1) + 1) / s.v)


def last_group(s: Sizes[Value]) -> Value:
    """Micro-batches of the last group, whose backward passes go from chunk to chunk."""
    left = s.m % s.g
    return np.where(left > 0, left, s.g)


def _steady_sends(s: Sizes[Value]) -> Value:
    """(2 v - 1)(m - p) + p - 1: two tensors of a pair of chunks, but for the micro-batches that
    fill the pipeline, whose sends `turn_sends` counts. As simulated with equal passes."""
    return (2 * s.v - 1) * (s.m - s.p) + s.p - 1


def _whole_groups(s: Sizes[Any]) -> Any:
    """Groups of at least p micro-batches, the last too (Megatron-LM)."""
    left = s.m % s.g
    return (s.m >= s.g) & ((left == 0) | (left >= s.p))


@cache
def shortest_group(p: int, m: int) -> int:
    """The fewest micro-batches, p or more, of groups that m can be cut into; 0 where there are
    fewer than p."""
    return next((g for g in range(p, m + 1) if _whole_groups(Sizes(p, 1, g, m))), 0)


@cache
def longer_group(p: int, m: int) -> int:
    """The fewest micro-batches of groups that are all of more than p (turn_sends of `schedule`); 0
    where m is p or fewer."""
    return next((g for g in range(p + 1, m + 1) if m % g == 0 or m % g > p), 0)


def _group_message(name: str, s: Sizes[int]) -> str:
    near = max(s.m // s.g, 1) * s.g
    if s.g == s.p:
        group = shortest_group(s.p, s.m)
        return (
            f"{s.m} micro-batches are not a multiple of pp = {s.g}, which the {name} schedule "
            f"needs; nearest: {near}" + f", or micro_batch_group={group}" * (group > 0)
        )
    return (
        f"{s.m} micro-batches in groups of micro_batch_group = {s.g} leave {s.m % s.g}, fewer than "
        f"pp = {s.p}; nearest: {near} micro-batches, or micro_batch_group={s.p}"
    )


SCHEDULE = Schedule(
    name="interleaved",
    source="Narayanan et al. 2021, section 2.2.2",
    order=_order,
    in_flight=_in_flight,
    chunks=SEVERAL_CHUNKS,
    uneven_paths=True,
    steady_sends=_steady_sends,
    turns=lambda s: (s.g, last_group(s)),
    chunk_turn=last_group,
    groups=True,
    needs_stages=False,
    conditions=(
        Condition(
            name="interleaved-micro-batches", reads="pgm", ok=_whole_groups, message=_group_message
        ),
    ),
    frameworks={
        "megatron-core": "forward_backward_pipelining_with_interleaving",
        "torchtitan": "Interleaved1F1B",
    },
)
