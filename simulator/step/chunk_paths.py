"""Steps of looped chunks whose layers may have strategies of their own.

Their seconds are those of `uneven_chunks`, found for each plan anew: what a chunk takes is known.
Legend: arrays are [run, plan] or [turn, rank, plan], padded.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..base.arrays import (
    Column,
    Index,
    Value,
    any_nonzero,
    distinct_rows,
)
from ..layers.cost_columns import Cost
from ..pipeline.uneven_chunks import PATH_GROUPS, paths_of_seconds
from ..plan.layer_runs import ABSENT
from ..plan.plan import Plan
from ..workload.model import Model, Network
from .stage_layouts import looped_groups


class Runs(Protocol):
    """The runs of a table of plans (layer_run_stages.Runs)."""

    chunk: Column
    """[run, plan]; ABSENT where it pads."""
    costs: Value
    """[Cost, run, plan]."""


def looped_path_seconds(model: Model, plans: Plan, runs: Runs) -> Value | None:
    """Seconds along the longest paths of looped chunks [path, plan]; None without any."""
    looped = (plans.virtual_stages > 1) & (plans.pp > 1)
    if not any_nonzero(looped) or isinstance(model, Network):
        return None
    out = np.zeros((len(PATH_GROUPS) + 1, plans.rows))
    sizes = [plans.pp, plans.virtual_stages, looped_groups(plans)]
    first, which = distinct_rows(sizes)
    for shape, row in enumerate(first.tolist()):
        pp, turns, group = (int(size[row]) for size in sizes)
        mine = np.flatnonzero((which == shape) & looped)
        if mine.size:
            forward, backward = _chunk_seconds(runs, mine, (turns, pp))
            out[:, mine] = paths_of_seconds(forward, backward, group)
    return out


def _chunk_seconds(runs: Runs, plans: Index, shape: tuple[int, int]) -> tuple[Value, Value]:
    """Seconds of the forward and the backward passes of each chunk [turn, rank, plan], of
    (turns, ranks)."""
    forward, both = runs.costs[Cost.FORWARD][:, plans], runs.costs[Cost.TOTAL][:, plans]
    chunk, at = runs.chunk[:, plans], np.broadcast_to(np.arange(plans.size), forward.shape)
    there, out = chunk != ABSENT, np.zeros((2, shape[0] * shape[1], plans.size))
    for direction, passes in enumerate((forward, both - forward)):
        np.add.at(out[direction], (chunk[there], at[there]), passes[there])
    on, back = out.reshape(2, *shape, plans.size)
    return on, back
