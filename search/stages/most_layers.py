"""Most layers that each stage of a pipeline can do and hold: few pipelines need more than this.

For a stage of n layers, x_r of them in mode r of recompute, the linear relaxation of

    max sum x_r   with   sum x_r t_r <= longest,   sum x_r (held + F a_r) <= room

has at most two modes; what shares a layer of several kinds has the least of each.
Legend: t seconds of a layer, a bytes of activations, F micro-batches in flight; arrays are
[strategy, mode, stage].
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.layers.cost_columns import Cost
from plan3d.simulator.layers.layer_kinds import layer_kinds

from ..result.tolerances import ROUNDING
from .pipeline import Pipeline

FOREVER = 1e30
"""Seconds that stand for no limit."""


def can_hold_all(pipeline: Pipeline, most: Value) -> bool:
    """Whether stages of `most` layers [stage] hold all layers together, and one in each chunk."""
    enough = most.sum() >= pipeline.task.model.layers
    return bool(enough and (most >= pipeline.chunks).all())


def most_layers(pipeline: Pipeline, longest: float, limit: float) -> Value:
    """Layers that a stage of `longest` seconds and `limit` bytes has at most [stage]."""
    p, software = pipeline, pipeline.task.software
    kinds = sorted(set(p.task.model.order))
    kept = p.layers.costs[Cost.ACTIVATIONS] + (p.pp == 1) * p.layers.costs[Cost.GATHERED]
    seconds, kept = (part[:, :, kinds].min(axis=2) for part in (p.layers.costs[Cost.TOTAL], kept))
    modes, zeros = np.any(p.legal, axis=2, keepdims=True), np.any(p.legal, axis=1)
    seconds = np.where(modes, seconds[:, :, None], np.inf)
    each = p.layers.held[:, :, kinds].min(axis=2)
    held = np.where(zeros, each.T, np.inf).min(axis=1)
    size = held[:, None, None] + p.in_flight * kept[:, :, None]
    room = (limit - software.context_bytes) / (1 + software.allocator_slack)
    own = np.where(np.arange(p.pp) == p.pp - 1, longest - _head(p), longest)
    found = _relaxed(seconds, size, own * (1 + ROUNDING), room * (1 + ROUNDING))
    out: Value = np.floor(np.minimum(found, p.task.model.layers) + ROUNDING)
    return out


def _head(pipeline: Pipeline) -> float:
    """Least seconds of the head."""
    names = [kind.name for kind in layer_kinds(pipeline.task.model)]
    return float(pipeline.layers.fastest[:, names.index("head")].min()) if "head" in names else 0.0


def _relaxed(seconds: Value, size: Value, longest: Value, room: float) -> Value:
    """The optimum of the relaxation, of the strategy with the largest [stage]."""
    if room <= 0:
        return np.zeros(size.shape[2])
    longest = np.minimum(longest, FOREVER)
    out: Value = np.minimum(longest / seconds, room / size).max(axis=(0, 1))
    for a, b in combinations(range(seconds.shape[1]), 2):
        t, u, m, n = seconds[:, a], seconds[:, b], size[:, a], size[:, b]
        with np.errstate(divide="ignore", invalid="ignore"):
            x = (longest * n - room * u) / (t * n - u * m)
            y = (room * t - longest * m) / (t * n - u * m)
            both = np.where((x > 0) & (y > 0) & np.isfinite(x + y), x + y, 0.0)
        out = np.maximum(out, both.max(axis=0))
    return out
