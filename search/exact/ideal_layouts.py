"""Ranks of ideal layouts, which every placement of the same layers exceeds."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.pipeline import stage_placement
from plan3d.simulator.workload.model import Model


def even_cut_of_model(model: Model, pp: int) -> stage_placement.Cut:
    """A model cut evenly into a chunk a rank."""
    return even_cut(model.order, tuple(kind.name for kind in layer_kinds(model)), pp)


def even_cut(order: tuple[int, ...], kinds: tuple[str, ...], pp: int) -> stage_placement.Cut:
    """The same of blocks of these kinds, by the names of all kinds of layers."""
    chunks = stage_placement.balanced_layers(len(order), pp)
    return stage_placement.Cut(order, kinds, pp, chunks)


def model_counts(cut: stage_placement.Cut) -> Value:
    """Layers of each kind on all ranks [kind]."""
    total: Value = stage_placement.rank_counts(cut).sum(axis=0)
    return total


@lru_cache(maxsize=4096)
def least_counts(cut: stage_placement.Cut) -> Value:
    """Some rank holds no less than the mean; of n layers of a kind, where there are several, some
    rank holds ceil(n / p); one holds the head, the last row. Whatever the cut's chunks are."""
    total = model_counts(cut)
    several = np.isin(np.arange(total.size), cut.order) & (total > 1)
    shares = np.ceil(np.diag(total)[several] / cut.pp)
    ends = total * np.array(["head" in name or "mtp" in name for name in cut.kinds])
    return np.vstack([total / cut.pp, shares, ends])


def ideal_layout(cut: stage_placement.Cut) -> stage_placement.StageLayout:
    """Ranks that every looped placement over `pp` ranks exceeds, whatever its chunks."""
    return _layout_of_least_counts(even_cut(cut.order, cut.kinds, cut.pp), (0, 0, 0))


def ideal_between_ends(cut: stage_placement.Cut) -> stage_placement.StageLayout:
    """The same where the layers of the end ranks are known, for a model with one kind of block.

    The cut has one chunk a rank. More chunks leave some rank between the ends
    with no less than the most here, and an end that holds more was chosen.
    """
    between = max(cut.chunks[1:-1], default=0)
    first, last = (end if end > between > 0 else 0 for end in (cut.chunks[0], cut.chunks[-1]))
    return _layout_of_least_counts(even_cut(cut.order, cut.kinds, cut.pp), (first, between, last))


@lru_cache(maxsize=65536)
def _layout_of_least_counts(
    cut: stage_placement.Cut, blocks: tuple[int, int, int]
) -> stage_placement.StageLayout:
    """The ranks of least_counts, and those that hold so many blocks: the first, one between and the
    last, with the head.

    They count as last ranks, which keep fewest micro-batches in flight; the mean stands for all.
    """
    least, (first, between, last) = least_counts(cut), blocks
    block = np.array([name.startswith("block") for name in cut.kinds])
    known = [first * block, between * block, last * block + least[-1]]
    counts = np.vstack([least[:-1], known])
    alike, rank = np.zeros(len(counts)), np.full(len(counts), cut.pp - 1.0)
    alike[0] = cut.pp
    before = np.zeros_like(counts)
    return stage_placement.StageLayout(counts, rank, rank, alike, before, model_counts(cut))
