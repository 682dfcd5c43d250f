"""Pipelines of plans that are not uniform: stages, micro-batches, strategies.

All stages of a pipeline share its micro-batches, and every field but tp, dp, ZeRO and recompute.
Legend: p stages, m micro-batches, N GPUs, B sequences of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Column, Value, distinct
from plan3d.simulator.hardware.precision import RECIPES
from plan3d.simulator.layers.layer_costs import Cost
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.operators.collectives import place
from plan3d.simulator.pipeline.schedules import needs_stages
from plan3d.simulator.plan.fields import AXES
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.plan.values import AUTO
from plan3d.simulator.rules.layer_run_rules import as_run
from plan3d.simulator.rules.validity import legal_runs
from plan3d.simulator.step.memory import bytes_of_states, state_bytes
from plan3d.simulator.step.ranks import Weights
from plan3d.simulator.step.stages import costs_of, strategy
from plan3d.simulator.task import Task

from ..space.axes import DERIVED

Axes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Stages that share their micro-batches, and the strategies each may have [strategy]."""

    stages: int
    micro_batches: int
    shared: Mapping[str, int]
    """Fields of a plan that all stages share."""
    tp: Column
    dp: Column
    zero: NDArray[np.bool_]
    """ZeRO stages that each strategy may have [strategy, 4]."""
    seconds: Value
    """Least seconds of a layer of each kind in both passes [strategy, kind]."""
    held: Value
    """Least bytes of its weights, gradients and optimizer state on a rank [strategy, kind]."""
    recompute: tuple[int, ...]
    """Modes of recompute a layer may have, lightest first."""

    @property
    def gpus(self) -> Column:
        """GPUs of a stage under each strategy."""
        out: Column = self.tp * self.dp * self.shared["cp"]
        return out

    def columns(self, which: Column) -> dict[str, Column]:
        """Plan columns of one stage for each of these strategies; ZeRO and recompute are 0."""
        rows = {name: np.full(which.size, value, np.int64) for name, value in self.shared.items()}
        share = self.shared["global_batch"] // (self.micro_batches * self.dp[which])
        rows |= {"pp": np.full(which.size, self.stages, np.int64), "micro_batch": share}
        rows |= {"tp": self.tp[which], "dp": self.dp[which], "zero": np.zeros_like(which)}
        return {name: column for name, column in rows.items() if name in AXES}

    def least_seconds(self, task: Task) -> float:
        """Seconds of a step that no plan of this pipeline beats: work spread evenly over all GPUs.

        (m - 1) W / N + S, with W the GPU-seconds of all layers and S their seconds one after
        another, each layer under its best strategy.
        """
        layers = whole_model(task, self.stages == 1)
        work = layers @ (self.seconds * self.gpus[:, None]).min(axis=0)
        alone = layers @ self.seconds.min(axis=0)
        slowest = work / task.gpus
        return float((self.micro_batches - 1) * slowest + max(alone, slowest))


def whole_model(task: Task, together: bool) -> Value:
    """Layers of each kind in the model, ends included [kind]; `together` on one rank."""
    kinds = [kind.name for kind in layer_kinds(task.model)]
    out = np.bincount(task.model.order, minlength=len(kinds)).astype(float)
    for end in ("embedding", "head", "mtp"):
        shared = f"shared {end}" if together and f"shared {end}" in kinds else end
        if shared in kinds:
            out[kinds.index(shared)] = 1
    return out


def pipelines(task: Task, axes: Axes, unequal: bool = False) -> Iterator[Pipeline]:
    """Every pipeline of a task; `axes` are the values that a stage's fields may have.

    A stage has N / p GPUs. If p does not divide N, or if they may be `unequal`, each stage has any
    power of two within a node or any number of whole nodes.
    """
    fixed = {name: axes[name][0] for name in FIXED} | {"global_batch": task.global_batch}
    meshes = list(_meshes(task, axes["pp"], unequal))
    for values in product(*(axes[name] for name in _VARIED)):
        shared = {**fixed, **dict(zip(_VARIED, values, strict=True))}
        shared["overlap_tp"] *= shared["sequence_parallel"]
        if shared["expert_dispatch"] == AUTO:
            shared["expert_dispatch"] = int(
                DERIVED["expert_dispatch"].of(SimpleNamespace(**shared), task)
            )
        rows = np.array(list(_strategies(task, axes, shared["cp"], meshes)), np.int64)
        if rows.size:
            yield from _with_strategies(task, axes, shared, meshes, rows)


_OWN = ("pp", "tp", "dp", "micro_batch", "zero", "recompute")
"""Fields that stages and their number decide."""
_VARIED = ("sequence_parallel", "cp", "ep", "etp", "cp_comm", "expert_dispatch")
"""Fields that all stages of a pipeline share."""
FIXED = tuple(name for name in AXES if name not in (*_OWN, *_VARIED))
"""The others, which have one value in a search."""


def _meshes(
    task: Task, pp: tuple[int, ...], unequal: bool
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Numbers of stages, and the GPUs that each of them may have."""
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
    task: Task, axes: Axes, cp: int, meshes: list[tuple[int, tuple[int, ...]]]
) -> Iterator[tuple[int, int, int, int, int]]:
    """Column of the stages, micro-batches, tp, dp and sequences of a micro-batch on a rank."""
    for at, (_, sizes) in enumerate(meshes):
        for size, tp in product(sizes, axes["tp"]):
            dp, rest = divmod(size, tp * cp)
            if rest or not dp or (axes["dp"] != (AUTO,) and dp not in axes["dp"]):
                continue
            for share in axes["micro_batch"]:
                m, rest = divmod(task.global_batch, dp * share)
                if not rest:
                    yield at, m, tp, dp, share


def _with_strategies(
    task: Task,
    axes: Axes,
    shared: dict[str, int],
    meshes: list[tuple[int, tuple[int, ...]]],
    rows: Column,
) -> Iterator[Pipeline]:
    """The pipelines of rows of _strategies: one for every number of stages and micro-batches."""
    legal = _legal(task, axes, shared, rows)
    seconds, held = _least_of_layers(task, axes, shared, rows, legal)
    modes = tuple(sorted(mode for mode in axes["recompute"] if _may(task, shared, rows, mode)))
    keys, which = np.unique(rows[:, :2], axis=0, return_inverse=True)
    for i, (at, m) in enumerate(keys.tolist()):
        mine = (which.ravel() == i) & legal.any(axis=1)
        pp = meshes[at][0]
        if modes and mine.any() and (pp > 1 or not needs_stages(shared["schedule"])):
            tp, dp = rows[mine][:, 2], rows[mine][:, 3]
            least = seconds[mine], held[mine]
            yield Pipeline(pp, m, shared, tp, dp, legal[mine], *least, modes)


def _legal(task: Task, axes: Axes, shared: dict[str, int], rows: Column) -> NDArray[np.bool_]:
    """ZeRO stages that strategies may have [strategy, 4]."""
    out = np.zeros((len(rows), 4), bool)
    for zero in axes["zero"]:
        out[:, zero] = legal_runs(_as_plans(shared, rows, zero, 0), task)
    return out


def _may(task: Task, shared: dict[str, int], rows: Column, mode: int) -> bool:
    """Whether layers of this model have a mode of recompute."""
    return bool(legal_runs(_as_plans(shared, rows, 0, mode), task).any())


def _as_plans(shared: dict[str, int], rows: Column, zero: int, recompute: int) -> Plan:
    """Strategies as rows of plans."""
    own = {"zero": zero, "recompute": recompute}
    names = {name: value for name, value in {**shared, **own}.items() if name in AXES}
    columns = {name: np.full(len(rows), value, np.int64) for name, value in names.items()}
    _, _, columns["tp"], columns["dp"], columns["micro_batch"] = rows.T
    return from_columns(as_run(columns))


def _least_of_layers(
    task: Task, axes: Axes, shared: dict[str, int], rows: Column, legal: NDArray[np.bool_]
) -> tuple[Value, Value]:
    """Least seconds and least bytes of state of a layer of each kind [strategy, kind]."""
    recipe = RECIPES[int(shared["precision"])]
    lightest = _as_plans(shared, rows, 0, min(axes["recompute"]))
    first, which = distinct([lightest.tp, lightest.micro_batch])
    table = costs_of(task.model)(task, recipe, strategy(lightest.take(first))).table[which]
    tp, ranks = lightest.tp, lightest.dp * shared["cp"]
    folded = shared["etp"] * shared["ep"]
    weights = Weights(
        dense=table[:, :, Cost.DENSE_PARAMETERS].T,
        expert=table[:, :, Cost.EXPERT_PARAMETERS].T,
        units=table[:, :, Cost.UNITS].T,
        unit_parameters=table[:, :, Cost.DENSE_PARAMETERS].T,
        data_group=place(ranks, tp, task.cluster),
        expert_group=place(np.maximum(tp * ranks / folded, 1.0), folded, task.cluster),
    )
    states = bytes_of_states(task, recipe, shared["optimizer"])
    held = [sum(state_bytes(states, zero, weights).values(), np.zeros(1)) for zero in range(4)]
    least = np.where(legal.T[:, None], held, np.inf).min(axis=0)
    return table[:, :, Cost.TOTAL], (1 + task.software.allocator_slack) * least.T
