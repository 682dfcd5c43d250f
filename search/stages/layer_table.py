"""Costs of one layer of each kind under each strategy that a stage may give it.

Everything here is from the simulator's own functions, and adds up over the layers of a stage.
Legend: s strategy (tp, dp, micro-batch), r recompute, z ZeRO stage, k layer kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from plan3d.simulator.base.arrays import (
    Column,
    Index,
    Mask,
    Value,
    distinct_rows,
)
from plan3d.simulator.hardware.precision import Recipe
from plan3d.simulator.layers.cost_columns import Cost, LayerCosts
from plan3d.simulator.layers.layer_costs import layer_cost_function
from plan3d.simulator.plan.fields import STRATEGY
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step import memory, stages
from plan3d.simulator.step.optimizer import optimizer_seconds
from plan3d.simulator.step.ranks import WEIGHT_COLUMNS, Weights
from plan3d.simulator.step.sharding_buffers import sharding_buffers
from plan3d.simulator.task import Task

ZERO_STAGES = 4
"""ZeRO stages there are."""


@dataclass(frozen=True, eq=False)
class LayerTable:
    """Costs of layers, gathered when asked for."""

    task: Task
    recipe: Recipe
    optimizer: int
    expert_ranks: float
    """Ranks of a group of experts: etp ep."""
    tp: Column
    ranks: Column
    """That share dense weights: dp cp [s]."""
    distinct_costs: LayerCosts
    """Of all different strategies of layers."""
    rows: Index
    """Rows of `distinct_costs` [s, r]."""

    @classmethod
    def of(cls, task: Task, recipe: Recipe, plans: Plan, modes: int) -> LayerTable:
        """The table of plans whose layers all have one strategy [s r], of so many modes of
        recompute each."""
        rows, which = distinct_rows([getattr(plans, name) for name in STRATEGY])
        costs = layer_cost_function(task.model)(task, recipe, stages.strategies(plans.take(rows)))
        return cls(
            task=task,
            recipe=recipe,
            optimizer=int(plans.optimizer[0]),
            expert_ranks=float(plans.etp[0] * plans.ep[0]),
            tp=plans.tp[::modes],
            ranks=plans.dp[::modes] * plans.cp[::modes],
            distinct_costs=costs,
            rows=which.reshape(-1, modes),
        )

    def take(self, rows: Column | Mask) -> LayerTable:
        """The chosen strategies."""
        return replace(self, tp=self.tp[rows], ranks=self.ranks[rows], rows=self.rows[rows])

    @cached_property
    def costs(self) -> Value:
        """[Cost, s, r, k]."""
        return np.moveaxis(self.distinct_costs.table[self.rows], -1, 0)

    @cached_property
    def least_seconds(self) -> Value:
        """Least seconds of a layer in both passes [s, k]."""
        out: Value = self.distinct_costs.table[:, :, Cost.TOTAL][self.rows].min(axis=1)
        return out

    @cached_property
    def working_bytes(self) -> Value:
        """Bytes that a stage keeps once for its largest layer [s, r, k]."""
        return np.moveaxis(self.distinct_costs.working_set[:, self.rows], 0, -1)

    @cached_property
    def boundary_bytes(self) -> float:
        """Bytes of the smallest boundary tensor of a micro-batch on a rank."""
        return float(self.distinct_costs.boundary_bytes[:, self.rows].min())

    def weights(self, dense: Value, expert: Value, units: Value, **others: Value) -> Weights:
        """Parameters that are sharded alike [s, n]; what is not given is 0."""
        parameters = dict.fromkeys(WEIGHT_COLUMNS, np.zeros_like(dense)) | others
        parameters |= {"dense": dense, "expert": expert, "units": units}
        parameters["unit_parameters"] = dense + expert
        tp, ranks = (column[:, None].astype(float) for column in (self.tp, self.ranks))
        return Weights.of_layers(self.task, parameters, tp, ranks, self.expert_ranks)

    @cached_property
    def layer_weights(self) -> Weights:
        """The weights of one layer of each kind [s, k]."""
        table = self.distinct_costs.table[self.rows[:, 0]]
        return self.weights(**{name: table[..., cost] for name, cost in WEIGHT_COLUMNS.items()})

    @cached_property
    def states(self) -> list[dict[str, Value]]:
        """Bytes of weights, gradients and optimizer state of a layer [s, k], by ZeRO stage."""
        states = memory.bytes_of_states(self.task, self.recipe, self.optimizer)
        return [memory.state_bytes(states, zero, self.layer_weights) for zero in range(ZERO_STAGES)]

    @cached_property
    def state_bytes(self) -> Value:
        """The same together, but for casts of weights, which are gone when all gradients are there
        [z, s, k]."""
        return np.stack(
            [
                sum(parts.values(), np.zeros(1))
                - memory.cast_bytes(self.task, self.recipe, zero, self.layer_weights)
                for zero, parts in enumerate(self.states)
            ]
        )

    def absent_gradient_bytes(self, pp: int) -> Value | float:
        """Bytes of a layer's gradients that may not be there beside its activations [z, s, k]: of a
        stack that frees them after the update, where one stage may have one micro-batch."""
        if pp > 1 or not self.task.software.frees_gradients:
            return 0.0
        return np.stack([parts["gradients"] for parts in self.states])

    @cached_property
    def sharding_bytes(self) -> Value:
        """Bytes of buffers that sharding needs once beside any layer, at least [z, s, k]: those of
        FSDP's layers and of its ends are never all there."""
        none = np.zeros_like(self.layer_weights.dense)
        apart = bool(self.task.software.gathered_ends)
        sizes = [
            sharding_buffers(self.task, self.recipe, self.layer_weights, zero).passes
            * (zero < ZERO_STAGES - 1 or not apart)
            for zero in range(ZERO_STAGES)
        ]
        return np.stack([size + none for size in sizes])

    @cached_property
    def optimizer_seconds(self) -> Value:
        """Seconds of the optimizer [z, s, k]."""
        seconds = optimizer_seconds(self.task, self.recipe, self.optimizer, self.layer_weights)
        return seconds[[min(zero, 1) for zero in range(ZERO_STAGES)]]
