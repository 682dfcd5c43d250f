"""Ranks of ideal layouts, which every placement of the same layers exceeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Column, Value
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.layers.placements import Layouts
from plan3d.simulator.pipeline import stage_placement
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.workload.model import Model

from ..space.space import Space

ENDS = ("first_stage_layers", "last_stage_layers")


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


class IdealLayouts(Layouts):
    """Ranks that every looped placement of some partial plans exceeds, whatever their chunks."""

    def __init__(self, space: Space, known: Collection[str], keeps_most: bool) -> None:
        super().__init__(space.task, stage_placement.layout)
        self.space = space
        self.known = [n for n in ("virtual_stages", *ENDS) if n in known]
        """Those of these fields that are known."""
        self.keeps_most = keeps_most
        """Whether the first rank keeps as many micro-batches in flight as under 1F1B."""
        self.ends: dict[tuple[str, int], list[int]] = {}
        """Layers that each end stage may have, by the number of ranks."""

    def _shapes(self, plans: Plan) -> list[Column]:
        return [plans.pp, *(getattr(plans, name) for name in self.known)]

    def _add(self, explicit: tuple[int, ...], shape: tuple[int, ...]) -> None:
        pp, model = shape[0], self.task.model
        cut = even_cut(model.order, self.kinds, pp)
        fields = dict(zip(self.known, shape[1:], strict=True))
        ends = [self._blocks_of_end(end, pp, fields) for end in ENDS]
        self.numbers[explicit, *shape] = len(self.every)
        self.cuts.append(cut)
        self.every.append(ideal_layout(cut, *ends, self.keeps_most))

    def _blocks_of_end(self, end: str, pp: int, known: Mapping[str, int]) -> tuple[int, int]:
        """Fewest and most blocks on the rank of an end, one of ENDS."""
        space, layers = self.space, self.task.model.layers
        if pp == 1:
            return layers, layers
        if space.layers_per_stage or self.task.software.cut_by_parameters:
            return 0, layers
        values = {n: [known[n]] if n in known else self._values(n, pp) for n in ENDS}
        chosen = [n for n in values[end] if n]
        fewest, most = list(chosen), list(chosen)
        if 0 in values[end]:
            virtual = known.get("virtual_stages")
            (other_end,) = {*ENDS} - {end}
            for opposite in values[other_end]:
                for v in [virtual] if virtual else space.axes["virtual_stages"]:
                    chunks, rest = (pp - (opposite > 0)) * v, layers - opposite
                    if rest >= chunks:
                        fewest.append(rest // chunks * v)
                        most.append(-(-rest // chunks) * v)
        return min(fewest, default=0), min(max(most, default=layers), layers)

    def _values(self, name: str, pp: int) -> list[int]:
        """Layers that an end stage may have, as far as is left in the search."""
        if (name, pp) not in self.ends:
            values = np.array(self.space.axes[name])
            fields: dict[str, Any] = {"pp": pp, name: values}
            for rule in self.space.search_rules:
                if set(rule.fields) == {"pp", name}:
                    fields[name] = fields[name][rule.ok(SimpleNamespace(**fields), self.task)]
            self.ends[name, pp] = fields[name].tolist()
        return self.ends[name, pp]


@lru_cache(maxsize=65536)
def ideal_layout(
    cut: stage_placement.Cut, first: tuple[int, int], last: tuple[int, int], keeps_most: bool
) -> stage_placement.StageLayout:
    """The ranks of least_counts, with the fewest blocks that the `first` and the `last` hold, and
    what the most that they hold leave to the others.

    They count as last ranks, which keep fewest micro-batches in flight, but for the first where it
    `keeps_most`; the mean stands for all. They exchange nothing.
    """
    least, total = least_counts(cut), model_counts(cut)
    block = np.array([name.startswith("block") for name in cut.kinds])
    blocks = total[block].sum()
    shares, means, mean = least[1:-1], least[:1], blocks / cut.pp
    for most, ranks, ends in (
        (first[1], cut.pp - 1, least[-1]),
        (first[1] + last[1], cut.pp - 2, np.zeros_like(total)),
    ):
        if ranks > 0 and blocks - most > ranks * mean:
            mean = (blocks - most) / ranks
            others = np.where(block, np.maximum(total - most, 0.0), ends) / ranks
            means = np.vstack([means, others])
            shares = np.maximum(shares, np.ceil(others) * (shares > 0))
    # Of the chunks before the first on the last rank, and behind the last on the first, one may be
    # empty.
    apart = max(cut.pp - 2, 0)
    on_first = _least_of_kinds(cut, first[0], cut.order[: len(cut.order) - apart])
    on_last = _least_of_kinds(cut, last[0], cut.order[apart:])
    embedding = total * np.array([name == "embedding" for name in cut.kinds])
    counts = np.vstack([means, shares, least[-1:] + on_last, embedding + on_first])
    alike, rank = np.zeros(len(counts)), np.full(len(counts), cut.pp - 1.0)
    alike[0] = cut.pp
    if keeps_most:
        rank[-1] = 0
    before, boundaries = np.zeros_like(counts), np.zeros(counts.shape, bool)
    return stage_placement.StageLayout(counts, rank, rank, alike, before, total, boundaries)


def _least_of_kinds(cut: stage_placement.Cut, blocks: int, among: tuple[int, ...]) -> Value:
    """Of so many blocks `among` some the fewest of each kind, the others being as many as can be
    [kind]."""
    others = len(among) - np.bincount(among, minlength=len(cut.kinds))
    out: Value = np.maximum(blocks - others, 0.0)
    return out
