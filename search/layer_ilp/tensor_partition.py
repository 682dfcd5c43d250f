"""Tensor partition: the cheapest layout of each operator of a graph, by an integer program.

    min  sum_v c_v x_v + sum_t sum_(a,b) r_t(a,b) p_t(a,b)
    s.t. sum x_v = 1;  p_t(a,b) >= [t is left in a] + [t is wanted in b] - 1;  sum m_v x_v <= M

x_v one-hot partitions of operator v, r_t(a,b) the collective that brings tensor t from layout a
to b, paid once for all readers. Without the memory row this is a small pairwise model.
Source: Zheng et al. 2022 (Alpa), section 4.2, with tensors instead of edges.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import ceil, inf

from plan3d.simulator.base.errors import NoFeasiblePlanError

from ..result.options import Deadline
from . import cp_sat
from .cp_sat import Expression, Variable
from .operator_graph import (
    Change,
    Graph,
    OperatorLayout,
    Prices,
    changes,
    cost,
    rank_bytes,
    reshard,
)


@dataclass(frozen=True, kw_only=True)
class TensorPartition:
    """The chosen partitions, what they cost, and how good they are proven to be."""

    choice: dict[str, str]
    """Name of the partition of each operator."""
    cost: float
    """Work and collectives, evaluated exactly."""
    bound: float
    """No choice that fits costs less."""
    bytes: float
    """What a rank keeps."""
    changes: tuple[Change, ...]
    """The collectives."""
    complete: bool
    """False when the time limit ended the search."""

    @property
    def gap(self) -> float:
        """How much cheaper another choice could be, relative."""
        return max(1 - self.bound / self.cost, 0.0) if self.cost else 0.0


ByLayout = dict[OperatorLayout, Expression]
"""For each layout, whether a tensor is left, or read, there."""


class _Program:
    """The integer program of a graph."""

    def __init__(self, graph: Graph, prices: Prices, training: bool, limit: float) -> None:
        from ortools.sat.python import cp_model

        self.graph, self.prices, self.training = graph, prices, training
        self.model = cp_model.CpModel()
        self.costs: list[tuple[float, Variable]] = []
        self.chosen = {name: self._choose_partition(name) for name in graph.nodes}
        for name in graph.nodes:
            self._pay_changes(name)
        self._limit_memory(limit)
        self.units = cp_sat.Units.of(sum(cost for cost, _ in self.costs))
        self.model.minimize(sum(self.units.round_down(cost) * term for cost, term in self.costs))

    def _choose_partition(self, name: str) -> list[Variable]:
        partitions = self.graph.nodes[name]["partitions"]
        chosen = [self.model.new_bool_var(f"{name}: {p.name}") for p in partitions]
        self.model.add_exactly_one(chosen)
        self.costs += [(p.seconds, x) for p, x in zip(partitions, chosen, strict=True)]
        return chosen

    def _pay_changes(self, name: str) -> None:
        """Costs of the layouts in which an output is left and read, and of its gradients."""
        outputs = self._by_layout(name, "output_layout")
        self._pay(name, outputs, self._readers_by_layout(name, "input_layout"))
        if self.training:
            gradients = self._readers_by_layout(name, "input_gradient")
            self._pay(name, gradients, self._by_layout(name, "output_gradient"))

    def _by_layout(self, name: str, side: str) -> ByLayout:
        """For each layout of an operator's output, the sum of its partitions that have it."""
        out: ByLayout = defaultdict(int)
        partitions = self.graph.nodes[name]["partitions"]
        for partition, x in zip(partitions, self.chosen[name], strict=True):
            out[getattr(partition, side)] += x
        return out

    def _readers_by_layout(self, name: str, side: str) -> ByLayout:
        """For each layout, whether any reader has its input, or the gradient of it, there."""
        out: ByLayout = {}
        for reader in self.graph.successors(name):
            partitions = self.graph.nodes[reader]["partitions"]
            for partition, x in zip(partitions, self.chosen[reader], strict=True):
                layout = getattr(partition, side)
                if layout not in out:
                    out[layout] = self.model.new_bool_var(f"{name} {side} {layout.value}")
                self.model.add_implication(x, out[layout])
        return out

    def _pay(self, name: str, have: ByLayout, want: ByLayout) -> None:
        """Pay for each change of layout whose both ends are chosen."""
        for a, left in have.items():
            for b, needed in want.items():
                _, price = reshard(self.prices, a, b, self.graph.nodes[name]["size"])
                if price > 0:
                    paid = self.model.new_bool_var(f"{name}: {a.value} to {b.value}")
                    self.model.add(paid >= left + needed - 1)
                    self.costs.append((price, paid))

    def choice(self, answer: cp_sat.Answer) -> dict[str, int]:
        """The partition of each operator in a solution."""
        return {
            name: next(i for i, x in enumerate(chosen) if answer.value(x))
            for name, chosen in self.chosen.items()
        }

    def _limit_memory(self, limit: float) -> None:
        if limit == inf:
            return
        sizes = [
            ceil(partition.bytes) * x
            for name, chosen in self.chosen.items()
            for partition, x in zip(self.graph.nodes[name]["partitions"], chosen, strict=True)
        ]
        self.model.add(sum(sizes) <= int(limit))


def partition(
    graph: Graph,
    prices: Prices,
    *,
    training: bool = False,
    limit: float = inf,
    time_limit: float | None = None,
    workers: int = 1,
    seed: int = 0,
) -> TensorPartition:
    """The cheapest partition of every operator within `limit` bytes a rank.

    `training` counts gradients as well. Sizes are rounded up to whole bytes. Raises
    NoFeasiblePlanError where nothing fits, or nothing was found in the time.
    """
    deadline = Deadline.after(time_limit)
    program = _Program(graph, prices, training, limit)
    answer = cp_sat.solve(program.model, deadline=deadline, workers=workers, seed=seed)
    if answer.infeasible:
        least = sum(min(p.bytes for p in n["partitions"]) for _, n in graph.nodes(data=True))
        raise NoFeasiblePlanError(
            f"no partition fits {limit:.4g} bytes a rank: the smallest needs {least:.4g}"
        )
    if not answer.has_solution:
        raise NoFeasiblePlanError("no partition was found within the time limit")
    index = program.choice(answer)
    return TensorPartition(
        choice={name: graph.nodes[name]["partitions"][i].name for name, i in index.items()},
        cost=cost(graph, prices, index, training),
        bound=answer.bound * program.units.size,
        bytes=rank_bytes(graph, index),
        changes=tuple(changes(graph, prices, index, training)),
        complete=answer.optimal,
    )
