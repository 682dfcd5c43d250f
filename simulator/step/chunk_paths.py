"""Critical paths of interleaved chunks whose layers may have strategies of their own.

The paths are those of `uneven_chunks`, whose lengths are layers: a layer counts as many as it takes
longer than one under the strategy of the plan's first run.
Legend: arrays are [run, plan] or [chunk, plan], padded.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..base.arrays import Column, Index, Value, some
from ..layers.cost_columns import Cost, LayerCosts
from ..pipeline.uneven_chunks import Path, critical_paths
from ..plan.layer_runs import ABSENT
from ..plan.plan import Plan
from ..workload.model import Model, Network


class Runs(Protocol):
    """The runs of a table of plans (layer_run_stages.Runs)."""

    chunk: Column
    """[run, plan]; ABSENT where it pads."""
    costs: Value
    """[Cost, run, plan]."""
    layers: LayerCosts
    which: Index
    """The strategy of each run in `layers` [run, plan]."""


def seconds(model: Model, plans: Plan, runs: Runs) -> Value | None:
    """Seconds along the critical paths of looped chunks [Path, plan]; None without any."""
    virtual = (plans.virtual_stages > 1) & (plans.pp > 1)
    if not some(virtual) or isinstance(model, Network):
        return None
    assert plans.segments
    lengths = plans.segments.layers.T * _weights(model, runs)
    forward, both = runs.costs[Cost.FORWARD], runs.costs[Cost.TOTAL]
    values = np.stack([lengths, forward, both - forward])
    out = np.zeros((len(Path), plans.rows))
    for plan in np.flatnonzero(virtual).tolist():
        there, pp = runs.chunk[:, plan] != ABSENT, int(plans.pp[plan])
        own, chunks = runs.chunk[there, plan], int(plans.virtual_stages[plan]) * pp
        length, *passes = (
            np.bincount(own, part, chunks).reshape(-1, pp) for part in values[:, there, plan]
        )
        paths = critical_paths(length, np.stack(passes, axis=-1))
        # Forward seconds of what runs forward, backward seconds of what runs backward.
        out[:, plan] = paths[:, 0] + paths[:, 3]
    return out


def _weights(model: Model, runs: Runs) -> Value:
    """Seconds of a mean layer of the model under each run's strategy, over those of the first."""
    kinds = np.bincount(model.order, minlength=runs.layers.table.shape[1])
    mean = (runs.layers.table[:, :, Cost.TOTAL] @ kinds)[runs.which]
    out: Value = mean / mean[0]
    return out
