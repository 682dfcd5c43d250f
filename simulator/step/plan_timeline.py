"""Timeline of one plan, event by event: its stage times from the cost model, then the events.

The closed forms choose among plans; this re-scores the best few (`rescore`) and times uneven
stages exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..base.arrays import Value
from ..layers.cost_columns import SECONDS, Cost
from ..layers.placements import chunk_sizes
from ..pipeline import schedules, stage_placement
from ..pipeline.dependency_graph import MOST_PASSES, forward_passes, graph
from ..pipeline.event_simulation import StageTimes, Timeline
from ..pipeline.event_simulation import simulate as run
from ..pipeline.schedule import Placement, Schedule, Sizes
from ..plan.plan import Plan, resolve
from ..rules.validity import check
from ..task import Task
from .costs import Costs
from .evaluate import simulate
from .stages import Stages

EXCHANGE = 0.5
"""Share of a hop for which either end of an interleaved send that is not overlapped stands still.
After a forward and a backward pass a rank sends two tensors through its link, and receives two
meanwhile (Megatron-Core, p2p_communication.py: send_forward_backward_recv_forward_backward)."""


@dataclass(frozen=True, kw_only=True)
class PlanTimeline:
    """One plan's operations in time, and what surrounds them in a step."""

    task: Task
    plan: Plan
    """The plan with every AUTO resolved."""
    costs: Costs
    """Closed-form costs."""
    times: StageTimes
    timeline: Timeline
    part_seconds: Value
    """Seconds per micro-batch by part of cost_columns.SECONDS [part, stage]."""
    activations: Value
    """Bytes of activations per micro-batch of each stage [stage]."""
    weight_gradient_inputs: Value
    """Those of them that a weight gradient alone still needs [stage]."""
    logits: Value
    """Bytes of logits of a micro-batch that wait for the backward pass [stage]."""
    data_comm: float
    """Seconds of exposed gradient and weight synchronisation after the pipeline."""
    contended: float
    """Seconds by which the rest of it slows kernels."""
    host_comm: float
    """Seconds in which only copies of optimizer and weights on the host run."""
    optimizer: float
    unpaired_a2a_seconds: float = 0.0
    """Seconds of exchanges of experts that find no other micro-batch beside them."""

    @property
    def tensor_share(self) -> float:
        """Share of a pass that is exposed tensor-parallel communication, mean over the ranks."""
        return self._share_of_passes("tensor_comm")

    @property
    def host_share(self) -> float:
        """The same of copies of activations to and from the host."""
        return self._share_of_passes("host_comm", self.host_comm)

    def _share_of_passes(self, part: str, at_end: float = 0.0) -> float:
        (group,) = self.costs.groups
        work = sum(float(group.part_seconds(cost)[0]) for cost in list(Cost)[SECONDS])
        return (float(group.seconds(part)[0]) - at_end) / work

    @property
    def pipeline_seconds(self) -> float:
        return float(self.timeline.step_seconds)

    @property
    def step_seconds(self) -> float:
        """Seconds of one optimizer step, pipeline simulated."""
        after = self.data_comm + self.contended + self.host_comm + self.optimizer
        return self.pipeline_seconds + self.unpaired_a2a_seconds + after

    @property
    def closed_form(self) -> float:
        """The same by the closed form."""
        return float(self.costs.step[0])

    @property
    def micro_batches(self) -> int:
        return int(self.timeline.graph.micro_batches)


def timeline_of(task: Task, plan: Plan) -> PlanTimeline:
    """Simulate one plan. Raises InputError when it breaks a rule or its schedule deadlocks."""
    resolved = resolve(plan, task.gpus).take(0)
    check(resolved, task)
    return _simulate_events(simulate(task, resolved.table()), resolved)


def rescore(costs: Costs) -> Value:
    """Seconds of a step of each row with its pipeline simulated event by event. As the closed form
    has it: one rank, which waits for nobody, and more than MOST_PASSES, of which few differ."""
    return np.array([_event_seconds(costs.take([row])) for row in range(len(costs))])


def _event_seconds(one: Costs) -> float:
    plan, (whole,) = one.plans.take(0), one.groups
    micro_batches = int(whole.stages.micro_batches[0])
    passes = forward_passes(int(plan.pp), int(plan.virtual_stages), micro_batches)
    if plan.pp == 1 or passes > MOST_PASSES:
        return float(one.step[0])
    return _simulate_events(one, plan).step_seconds


def _simulate_events(costs: Costs, plan: Plan) -> PlanTimeline:
    """The timeline of a plan; `costs` are those of its one row."""
    task = costs.task
    (group,) = simulate(task, _chunks_alone(task, plan).table(), _every_chunk).groups
    (whole,) = costs.groups
    s, schedule = group.stages, schedules.SCHEDULES.rows[plan.schedule]
    split = s.split_launch[:, 0] * schedule.defers
    m, times = int(s.micro_batches[0]), _stage_times(task, plan, s, split)
    parts = s.part_seconds[:, :, 0].copy()
    parts[Cost.LAUNCH] += split
    p, v, g = int(plan.pp), int(plan.virtual_stages), int(plan.micro_batch_group)
    held_back = _held_back(schedule, Sizes(p, v, g, m), times)
    data_comm, optimizer = (float(whole.seconds(n)[0]) for n in ("data_comm", "optimizer"))
    at_end = float(whole.optimizer_copies()[0] + whole.micro_batch_copies()[0])
    unpaired = float(whole.stages.unpaired_a2a_seconds()[0])
    return PlanTimeline(
        task=task,
        plan=plan,
        costs=costs,
        times=times,
        timeline=run(graph(schedule, p, v, m, g, held_back), times),
        part_seconds=parts,
        activations=s.activations[:, 0],
        weight_gradient_inputs=s.weight_gradient_inputs[:, 0],
        logits=s.logits[:, 0],
        data_comm=data_comm,
        contended=float(whole.sync_delay()[0]) - data_comm,
        host_comm=at_end,
        optimizer=optimizer,
        unpaired_a2a_seconds=unpaired,
    )


def _chunks_alone(task: Task, plan: Plan) -> Plan:
    """The plan with every chunk as a rank of its own, one micro-batch in flight."""
    naive = schedules.schedule_code("naive")
    if plan.segments:
        chunks = plan.pp * plan.virtual_stages
        return replace(plan, schedule=naive, pp=chunks, virtual_stages=1)
    return replace(
        plan,
        schedule=naive,
        layers_per_stage=chunk_sizes(task, plan),
        first_stage_layers=0,
        last_stage_layers=0,
    )


def _stage_times(task: Task, plan: Plan, s: Stages, split: Value) -> StageTimes:
    forward, both = s.forward[:, 0], s.backward[:, 0] + split
    weight = s.weight_gradient[:, 0]
    shown = 1 - plan.overlap_p2p * (1 - task.software.contention)
    return StageTimes(
        forward=forward,
        input_gradient=both - weight,
        weight_gradient=weight,
        hop=float(s.hop_seconds[0]),
        blocking_share=EXCHANGE * shown if plan.virtual_stages > 1 else 0.0,
    )


def _held_back(schedule: Schedule, sizes: Sizes[int], times: StageTimes) -> float:
    """Weight gradients that a rank holds back, over the rank."""
    longest = np.asarray((times.forward + times.input_gradient).max())
    weight = np.asarray(times.weight_gradient.max())
    columns = Sizes(*(np.asarray(float(size)) for size in sizes))
    return float(schedule.deferred_weight_gradients(columns, longest, weight))


def _every_chunk(cut: stage_placement.Cut) -> stage_placement.StageLayout:
    """A layout in which every chunk is a rank."""
    alone = cut._replace(pp=len(cut.chunks), place=Placement.LOOPED)
    return stage_placement.every_rank(alone)
