"""Bytes of every pipeline rank by tenant through a step, operation by operation.

    held(o) = states + sum_forward_begun(a) - sum_backward_ended(a) + logits + buffers + reserve

States, buffers and reserve are those of memory.py; activations and logits come with the forward
pass of a micro-batch and go with its backward pass, in the order of the event simulation. Buffers
are those of the largest layer of a rank through all passes: which layer runs is not resolved.
Experts count with the load that the task gives them; ranks of one stage are alike.
Legend: o operations of a rank in their order, a bytes of a micro-batch of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..base.arrays import Column, Value
from ..pipeline import stage_placement
from ..pipeline.operation_orders import Pass
from ..plan.plan import Plan
from ..step import memory
from ..step.evaluate import simulate
from ..step.plan_timeline import PlanTimeline, timeline_of
from ..task import Task

STATES = memory.PARTS[:3]
TENANTS = (*memory.PARTS[:-1], "context", "fragmentation")
"""Who holds bytes; the last two are the reserve of memory.PARTS, what is not counted of a stack
with fragmentation."""
LEAST_SHARE = 1e-9
"""Of the activations of a micro-batch that count as something."""
PASS_NAMES = {
    Pass.FORWARD: "forward",
    Pass.BACKWARD: "backward",
    Pass.INPUT: "input gradient",
    Pass.WEIGHT: "weight gradient",
}


class Moment(NamedTuple):
    """A moment of a step of one rank."""

    name: str
    """forward, backward, input gradient, weight gradient, or update."""
    stage: int
    micro_batch: int
    """-1 of the update."""
    seconds: float
    """When it starts, from the start of the step."""

    def __str__(self) -> str:
        if self.micro_batch < 0:
            return self.name
        return f"{self.name} of micro-batch {self.micro_batch}, stage {self.stage}"


class Kept(NamedTuple):
    """Activations of one micro-batch that wait for its backward pass."""

    stage: int
    micro_batch: int
    bytes: float


@dataclass(frozen=True, kw_only=True, eq=False)
class RankMemory:
    """Bytes of one pipeline rank through a step."""

    rank: int
    moments: tuple[Moment, ...]
    """Its operations in their order, then the update."""
    tenants: dict[str, Value]
    """Bytes by TENANTS [moment]."""
    in_flight: tuple[Kept, ...]
    """What waits at the peak."""

    @property
    def total(self) -> Value:
        """Bytes [moment]."""
        return sum(self.tenants.values(), np.zeros(1))

    @property
    def peak(self) -> int:
        """The moment of the peak: of equal ones the first that is no forward pass, which needs
        the buffers of losses and of layers that run again."""
        total = self.total
        full = np.flatnonzero(total >= total.max() * (1 - 1e-12))
        backward = [i for i in full.tolist() if self.moments[i].name != PASS_NAMES[Pass.FORWARD]]
        return int((backward or full.tolist())[0])

    @property
    def peak_bytes(self) -> float:
        return float(self.total[self.peak])

    def bytes_at(self, moment: int) -> dict[str, float]:
        """Bytes by tenant at a moment."""
        return {name: float(part[moment]) for name, part in self.tenants.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryTimeline:
    """Bytes of all pipeline ranks of one plan through a step."""

    timeline: PlanTimeline
    ranks: tuple[RankMemory, ...]

    @property
    def worst(self) -> RankMemory:
        """The rank that holds most at its peak; of equal ones the first."""
        return max(self.ranks, key=lambda rank: rank.peak_bytes)

    @property
    def leanest(self) -> RankMemory:
        """The rank that holds least at its peak."""
        return min(self.ranks, key=lambda rank: rank.peak_bytes)

    def excess(self) -> dict[str, float]:
        """Bytes by which each tenant of the worst rank is larger than that of the leanest, both at
        their peaks."""
        most, least = (rank.bytes_at(rank.peak) for rank in (self.worst, self.leanest))
        return {name: most[name] - least[name] for name in TENANTS}


def memory_timeline(task: Task, plan: Plan) -> MemoryTimeline:
    """Bytes of every rank of one plan through a step. Raises InputError when it breaks a rule, or
    has more passes than can be simulated."""
    x = timeline_of(task, plan)
    (group,) = simulate(task, x.plan.table(), stage_placement.every_rank).groups
    moments = group.rank_moments(int(group.zero[0]))
    context = float(np.ravel(memory.fixed_bytes(task, group.stages))[0])
    ranks = []
    for rank in range(x.timeline.graph.ranks):
        waiting = {name: float(moments.waiting[name][rank, 0]) for name in memory.PARTS}
        update = {name: float(moments.update[name][rank, 0]) for name in memory.PARTS}
        ranks.append(_rank_memory(x, rank, waiting, update, context))
    return MemoryTimeline(timeline=x, ranks=tuple(ranks))


def _rank_memory(
    x: PlanTimeline,
    rank: int,
    waiting: dict[str, float],
    update: dict[str, float],
    context: float,
) -> RankMemory:
    graph, own = x.timeline.graph, np.flatnonzero(x.timeline.graph.rank == rank)
    activations = _live_bytes(x, own, x.activations, x.weight_gradient_inputs)
    logits = _live_bytes(x, own, x.logits, np.zeros(x.logits.shape))
    passes = np.ones(own.size)
    columns = {name: np.append(waiting[name] * passes, update[name]) for name in STATES}
    columns["activations"] = np.append(activations, update["activations"])
    columns["logits"] = np.append(logits, update["logits"])
    columns["buffers"] = np.append(waiting["buffers"] * passes, update["buffers"])
    slack = memory.further_share(x.task)
    kept = [
        held["reserve"] - context - slack * sum(held[name] for name in memory.PARTS[:-1])
        for held in (waiting, update)
    ]
    columns["fragmentation"] = slack * sum(columns.values(), np.zeros(1))
    columns["fragmentation"] += np.append(kept[0] * passes, kept[1])
    columns["context"] = np.full(own.size + 1, context)
    moments = tuple(
        Moment(PASS_NAMES[Pass(kind)], stage, micro, seconds)
        for kind, stage, micro, seconds in zip(
            graph.kind[own].tolist(),
            graph.stage[own].tolist(),
            graph.micro_batch[own].tolist(),
            x.timeline.start[own].tolist(),
            strict=True,
        )
    )
    end = Moment("update", -1, -1, x.step_seconds - x.optimizer)
    tenants = {name: columns[name] for name in TENANTS}
    out = RankMemory(rank=rank, moments=(*moments, end), tenants=tenants, in_flight=())
    return replace(out, in_flight=_in_flight(x, own, out.peak))


def _live_bytes(x: PlanTimeline, own: Column, kept: Value, pending: Value) -> Value:
    """Bytes that wait while each operation of a rank runs [operation]; of two that run together
    the forward pass stands first."""
    graph = x.timeline.graph
    begun = np.where(graph.kind[own] == Pass.FORWARD, kept[graph.stage[own]], 0.0)
    freed = x.timeline.freed_bytes(kept, pending)[own]
    out: Value = np.cumsum(begun) - (np.cumsum(freed) - freed)
    return out


def _in_flight(x: PlanTimeline, own: Column, moment: int) -> tuple[Kept, ...]:
    """Micro-batches of a rank whose activations wait while an operation runs, by stage."""
    if moment >= own.size:
        return ()
    graph, begun, ended = x.timeline.graph, own[: moment + 1], own[:moment]
    begun = begun[graph.kind[begun] == Pass.FORWARD]
    held = np.zeros((graph.stages, graph.micro_batches))
    held[graph.stage[begun], graph.micro_batch[begun]] = x.activations[graph.stage[begun]]
    freed = x.timeline.freed_bytes(x.activations, x.weight_gradient_inputs)
    np.subtract.at(held, (graph.stage[ended], graph.micro_batch[ended]), freed[ended])
    stages, micros = np.nonzero(held > LEAST_SHARE * x.activations.max())
    return tuple(
        Kept(stage, micro, float(held[stage, micro]))
        for stage, micro in zip(stages.tolist(), micros.tolist(), strict=True)
    )
