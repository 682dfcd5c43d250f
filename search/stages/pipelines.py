"""Pipelines of a task: every number of stages and of micro-batches, with the strategies of stages.

Legend: N GPUs, p stages, m micro-batches, B sequences of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import numpy as np

from plan3d.simulator.base.arrays import Column, Mask
from plan3d.simulator.hardware.precision import RECIPES
from plan3d.simulator.plan.codes import Recompute
from plan3d.simulator.plan.fields import AXES
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.plan.values import AUTO
from plan3d.simulator.rules.expert_rules import has_many_queues
from plan3d.simulator.rules.layer_run_rules import as_run
from plan3d.simulator.rules.validity import legal_runs
from plan3d.simulator.step.data_parallel import zero_in_pipeline
from plan3d.simulator.task import Task

from ..space.axes import DERIVED
from .layer_table import ZEROS, LayerTable
from .pipeline import OWN, Pipeline
from .shapes import Shape

Axes = Mapping[str, tuple[int, ...]]

VARIED = ("sequence_parallel", "cp", "ep", "etp", "cp_comm", "expert_dispatch")
"""Fields that all stages of a pipeline share, of which there may be several values."""
FIXED = tuple(name for name in AXES if name not in (*VARIED, *OWN, "pp"))
"""Shared fields with one value in a search."""
SHARED = (*FIXED, *VARIED)


def pipelines(
    task: Task, axes: Axes, unequal: bool = False, shapes: Sequence[Shape] = ()
) -> Iterator[Pipeline]:
    """Every pipeline of a task; `axes` are the values that a stage's fields may have.

    A stage has N / p GPUs. If p does not divide N, or if they may be `unequal`, each whole stage
    has any power of two within a node or any number of whole nodes. Without `shapes` stages are
    whole, under the schedule of the axes.
    """
    meshes = list(_meshes(task, axes["pp"], unequal))
    fixed = {name: axes[name][0] for name in FIXED}
    shapes = shapes or [Shape(*(fixed[name] for name in Shape._fields))]
    besides = sorted({shape.overlap_ep for shape in shapes})
    for beside, *values in product(besides, *(axes[name] for name in VARIED)):
        shared = {**fixed, **dict(zip(VARIED, values, strict=True)), "overlap_ep": beside}
        if beside and shared["ep"] == 1:
            continue
        shared["overlap_tp"] *= shared["sequence_parallel"]
        alone = beside and len(besides) > 1 and not has_many_queues(task)
        if alone and shared["cp"] > 1:
            continue
        degrees = {**axes, "tp": tuple(tp for tp in axes["tp"] if tp == 1 or not alone)}
        if shared["expert_dispatch"] == AUTO:
            dispatch = DERIVED["expert_dispatch"].of(SimpleNamespace(**shared), task)
            shared["expert_dispatch"] = int(dispatch)
        rows = np.array(list(_strategies(task, degrees, shared["cp"], meshes)), np.int64)
        if rows.size:
            own = [shape for shape in shapes if shape.overlap_ep == beside]
            yield from _Shared(task, axes, shared, rows).pipelines(meshes, own)


Mesh = tuple[int, tuple[int, ...]]
"""A number of stages, and the GPUs that each of them may have."""


def _meshes(task: Task, pp: tuple[int, ...], unequal: bool) -> Iterator[Mesh]:
    node = task.cluster.gpus_per_node
    for stages in pp:
        if stages > min(task.model.layers, task.gpus):
            continue
        if task.gpus % stages or (unequal and stages > 1):
            most = task.gpus - stages + 1
            small = {2**i for i in range(node.bit_length()) if 2**i <= min(node, most)}
            yield stages, tuple(sorted({*small, *range(node, most + 1, node)}))
        else:
            yield stages, (task.gpus // stages,)


def _strategies(
    task: Task, axes: Axes, cp: int, meshes: list[Mesh]
) -> Iterator[tuple[int, int, int, int, int]]:
    """Mesh, micro-batches, tp, dp and sequences of a micro-batch on a rank."""
    for at, (_, sizes) in enumerate(meshes):
        for size, tp in product(sizes, axes["tp"]):
            dp, rest = divmod(size, tp * cp)
            if rest or not dp or (axes["dp"] != (AUTO,) and dp not in axes["dp"]):
                continue
            for share in axes["micro_batch"]:
                m, rest = divmod(task.global_batch, dp * share)
                if not rest:
                    yield at, m, tp, dp, share


def _as_it_is(legal: Mask, pp: int) -> Mask:
    """Legal combinations by the ZeRO stage that they have: in a pipeline 2 is 1
    (data_parallel.zero_in_pipeline)."""
    out = np.zeros_like(legal)
    really = zero_in_pipeline(np.arange(ZEROS), np.full(ZEROS, pp))
    for stated, zero in enumerate(really.tolist()):
        out[:, :, zero] |= legal[:, :, stated]
    return out


@dataclass(frozen=True)
class _Shared:
    """Strategies of pipelines that share their other fields."""

    task: Task
    axes: Axes
    shared: dict[str, int]
    rows: Column
    """Of _strategies [s, 5]."""

    def pipelines(self, meshes: list[Mesh], shapes: Sequence[Shape]) -> Iterator[Pipeline]:
        """One pipeline for every number of stages and of micro-batches, and every shape."""
        task, shared, modes = self.task, self.shared, tuple(sorted(self.axes["recompute"]))
        legal = self._legal(modes)
        used = legal.any(axis=(0, 2))
        modes, legal = tuple(np.array(modes)[used].tolist()), legal[:, used]
        if not modes:
            return
        recipe = RECIPES[int(shared["precision"])]
        layers = LayerTable.of(task, recipe, self._plans(0, modes), len(modes))
        keys, which = np.unique(self.rows[:, :2], axis=0, return_inverse=True)
        for i, (at, m) in enumerate(keys.tolist()):
            pp, mine = meshes[at][0], (which.ravel() == i) & legal.any(axis=(1, 2))
            equal = len(meshes[at][1]) == 1
            fit = [s for s in shapes if s.fits(task, pp, m) and (equal or s.virtual_stages == 1)]
            if not mine.any() or not fit:
                continue
            tp, dp = self.rows[mine][:, 2:4].T
            own = _as_it_is(legal[mine], pp)
            stated = {1: 2} if pp > 1 and 1 not in self.axes["zero"] else {}
            layer_table = layers.take(mine)
            for shape in fit:
                fields = {**shared, **shape._asdict()}
                yield Pipeline(task, pp, m, fields, tp, dp, modes, own, stated, layer_table)

    def _legal(self, modes: tuple[int, ...]) -> Mask:
        """Combinations of strategy, recompute and ZeRO stage that rules and axes allow."""
        out = np.zeros((len(self.rows), len(modes), ZEROS), bool)
        for zero in self.axes["zero"]:
            ok = legal_runs(self._plans(zero, modes), self.task)
            out[:, :, zero] = ok.reshape(-1, len(modes))
        if self.shared["overlap_ep"]:
            out[:, np.array(modes) == Recompute.FULL] = False
        return out

    def _plans(self, zero: int, modes: tuple[int, ...]) -> Plan:
        """Plans whose layers all have one strategy [s r]; what some have no use for is off."""
        n = len(self.rows)
        columns = {name: np.full(n * len(modes), value) for name, value in self.shared.items()}
        _, _, tp, dp, share = np.repeat(self.rows, len(modes), axis=0).T
        columns |= {"tp": tp, "dp": dp, "micro_batch": share, "zero": np.full_like(tp, zero)}
        return from_columns(as_run({**columns, "recompute": np.tile(modes, n)}))
