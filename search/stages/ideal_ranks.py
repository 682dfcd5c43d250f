"""Ideal ranks: numbers of layers that some rank of every placement reaches or exceeds.

Legend: p pipeline ranks; arrays are [row, kind], ends of the model included.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.pipeline import stage_placement
from plan3d.simulator.workload.model import Model


def even_cut(model: Model, pp: int) -> stage_placement.Cut:
    """A model cut evenly into a chunk a rank."""
    kinds = tuple(kind.name for kind in layer_kinds(model))
    chunks = stage_placement.balanced_layers(model.layers, pp)
    return stage_placement.Cut(model.order, kinds, pp, chunks)


def whole_model(cut: stage_placement.Cut) -> Value:
    """Layers of each kind on all ranks [kind]."""
    return _whole_model(cut.order, cut.kinds, cut.pp)


def least_counts(cut: stage_placement.Cut) -> Value:
    """Some rank holds no less than the mean; of n layers of a kind some rank holds ceil(n / p);
    one holds the head. Whatever the cut's chunks are."""
    return _least_counts(cut.order, cut.kinds, cut.pp)


@lru_cache(maxsize=4096)
def _whole_model(order: tuple[int, ...], kinds: tuple[str, ...], pp: int) -> Value:
    chunks = stage_placement.balanced_layers(len(order), pp)
    even = stage_placement.Cut(order, kinds, pp, chunks)
    total: Value = stage_placement.rank_counts(even).sum(axis=0)
    return total


@lru_cache(maxsize=4096)
def _least_counts(order: tuple[int, ...], kinds: tuple[str, ...], pp: int) -> Value:
    total = _whole_model(order, kinds, pp)
    block = np.isin(np.arange(total.size), order)
    shares = np.ceil(np.diag(total)[block] / pp)
    ends = total * np.array(["head" in name or "mtp" in name for name in kinds])
    return np.vstack([total / pp, shares, ends])
