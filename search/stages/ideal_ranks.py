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
    return even(model.order, tuple(kind.name for kind in layer_kinds(model)), pp)


def even(order: tuple[int, ...], kinds: tuple[str, ...], pp: int) -> stage_placement.Cut:
    """The same of blocks of these kinds, by the names of all kinds of layers."""
    chunks = stage_placement.balanced_layers(len(order), pp)
    return stage_placement.Cut(order, kinds, pp, chunks)


def whole_model(cut: stage_placement.Cut) -> Value:
    """Layers of each kind on all ranks [kind]."""
    total: Value = stage_placement.rank_counts(cut).sum(axis=0)
    return total


@lru_cache(maxsize=4096)
def least_counts(cut: stage_placement.Cut) -> Value:
    """Some rank holds no less than the mean; of n layers of a kind, where there are several, some
    rank holds ceil(n / p); one holds the head, the last row. Whatever the cut's chunks are."""
    total = whole_model(cut)
    several = np.isin(np.arange(total.size), cut.order) & (total > 1)
    shares = np.ceil(np.diag(total)[several] / cut.pp)
    ends = total * np.array(["head" in name or "mtp" in name for name in cut.kinds])
    return np.vstack([total / cut.pp, shares, ends])
