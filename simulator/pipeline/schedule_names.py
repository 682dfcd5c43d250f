"""Pipeline schedules and what people call them."""

from __future__ import annotations

from enum import IntEnum


class Schedule(IntEnum):
    """Order in which a pipeline rank runs forward and backward passes."""

    ONE_F_ONE_B = 0
    INTERLEAVED = 1
    GPIPE = 2
    NAIVE = 3
    """One micro-batch at a time: one rank works, the others wait."""
    BREADTH_FIRST = 4
    """All micro-batches through a chunk before the next chunk."""
    ZB_H1 = 5
    """Weight gradients deferred as far as the memory of 1F1B allows."""
    ZB_H2 = 6
    """Deferred further; the optimizer steps rank by rank and is validated afterwards."""
    ZB_H2_SYNC = 7
    """The same with one optimizer step for all ranks."""
    ZB_V = 8
    """Zero bubble with two chunks a rank, placed in a V."""
    DUALPIPE = 9
    """Micro-batches from both ends of the pipeline through two copies of the model."""
    DUALPIPE_V = 10
    """DualPipe cut in half: two chunks a rank in a V, one copy."""


SCHEDULE_NAMES: dict[str, int] = {
    "1f1b": Schedule.ONE_F_ONE_B,
    "interleaved": Schedule.INTERLEAVED,
    "gpipe": Schedule.GPIPE,
    "naive": Schedule.NAIVE,
    "breadth-first": Schedule.BREADTH_FIRST,
    "zb-h1": Schedule.ZB_H1,
    "zb-h2": Schedule.ZB_H2,
    "zb-h2-sync": Schedule.ZB_H2_SYNC,
    "zb-v": Schedule.ZB_V,
    "dualpipe": Schedule.DUALPIPE,
    "dualpipe-v": Schedule.DUALPIPE_V,
    "zb-1p": Schedule.ZB_H1,
    "zb-2p": Schedule.ZB_H2,
}
"""Codes by name; the first name of a code is how it is written."""


def schedule_name(schedule: int) -> str:
    """How a schedule is written."""
    return next(name for name, code in SCHEDULE_NAMES.items() if code == schedule)
