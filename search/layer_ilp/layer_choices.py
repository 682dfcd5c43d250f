"""Which pipelines are there, and which strategies may their layers have?

A pipeline is a number of stages with equally many GPUs, and a number of micro-batches; the layers
of a stage choose tp (hence dp), ZeRO and recompute one by one.
Legend: s strategy (tp), r recompute, z ZeRO stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Mask
from plan3d.simulator.hardware.precision import RECIPES, Recipe
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.plan.values import AUTO
from plan3d.simulator.rules.validity import legal
from plan3d.simulator.task import Task

from ..space.space import Space

ZEROS = 4
"""ZeRO stages there are."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Equal stages that share their micro-batches, and the strategies of their layers."""

    task: Task
    shared: Plan
    """A row whose cp, ep, etp, overlaps, precision and optimizer hold for all stages."""
    stages: int
    micro_batches: int
    tp: tuple[int, ...]
    recompute: tuple[int, ...]
    legal: Mask
    """Which strategies rules allow [s, r, z]."""

    @property
    def gpus(self) -> int:
        """GPUs of a stage."""
        return self.task.gpus // self.stages

    @property
    def dp(self) -> tuple[int, ...]:
        return tuple(self.gpus // (self.shared.cp * tp) for tp in self.tp)

    @property
    def shares(self) -> tuple[int, ...]:
        """Sequences of a micro-batch on a rank."""
        return tuple(self.task.global_batch // (self.micro_batches * dp) for dp in self.dp)

    @property
    def recipe(self) -> Recipe:
        return RECIPES[int(self.shared.precision)]

    def rows(self) -> Plan:
        """Every strategy without ZeRO, as if all layers had it [s r]."""
        pairs = product(zip(self.tp, self.dp, self.shares, strict=True), self.recompute)
        return from_columns(_columns(self.shared, self.stages, [(*s, 0, r) for s, r in pairs]))


def pipelines(space: Space, shared: Plan) -> Iterator[Pipeline]:
    """Every pipeline of a space whose other fields are those of `shared`."""
    task, axes = space.task, space.axes
    recompute = tuple(sorted(axes["recompute"]))
    for pp in axes["pp"]:
        gpus, rest = divmod(task.gpus, pp * shared.cp)
        if rest or pp > task.model.layers:
            continue
        splits = [(tp, gpus // tp) for tp in axes["tp"] if gpus % tp == 0]
        splits = [(tp, dp) for tp, dp in splits if axes["dp"] == (AUTO,) or dp in axes["dp"]]
        known: dict[int, list[tuple[int, int, int]]] = {}
        for (tp, dp), share in product(splits, axes["micro_batch"]):
            m, rest = divmod(task.global_batch, dp * share)
            if not rest:
                known.setdefault(m, []).append((tp, dp, share))
        for m, strategies in sorted(known.items()):
            allowed = _legal(space, shared, pp, strategies, recompute)
            usable: Mask = np.atleast_1d(allowed.any(axis=(1, 2)))
            if usable.any():
                tp = tuple(s[0] for s, ok in zip(strategies, usable, strict=True) if ok)
                yield Pipeline(task, shared, pp, m, tp, recompute, allowed[usable])


def _columns(
    shared: Plan, pp: int, rows: list[tuple[int, int, int, int, int]]
) -> dict[str, NDArray[np.int64]]:
    """Columns of plans whose layers all have one strategy: tp, dp, share, ZeRO, recompute.

    What only some strategies have a use for is off in the others.
    """
    tp, dp, share, zero, recompute = np.array(rows, np.int64).reshape(-1, 5).T
    out = {name: np.full(tp.size, value, np.int64) for name, value in shared.columns().items()}
    several, wide = dp * shared.cp > 1, tp > 1
    out |= {"pp": np.full(tp.size, pp), "tp": tp, "dp": dp, "micro_batch": share}
    out |= {"zero": zero, "recompute": recompute}
    for name in ("sequence_parallel", "overlap_tp"):
        out[name] = out[name] * wide
    out["overlap_grad_reduce"] = out["overlap_grad_reduce"] * several
    out["overlap_param_gather"] = out["overlap_param_gather"] * several * (zero > 0)
    return out


def _legal(
    space: Space,
    shared: Plan,
    pp: int,
    strategies: list[tuple[int, int, int]],
    recompute: tuple[int, ...],
) -> Mask:
    """Which strategies, recomputes and ZeRO stages rules and axes allow [s, r, z]."""
    rows = [(*s, z, r) for s, r, z in product(strategies, recompute, range(ZEROS))]
    ok = legal(from_columns(_columns(shared, pp, rows)), space.task)
    ok = ok.reshape(len(strategies), len(recompute), ZEROS)
    out: Mask = ok & np.isin(np.arange(ZEROS), space.axes["zero"])
    return out
