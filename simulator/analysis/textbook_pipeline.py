"""Textbook formulas of parallel work beside the event simulation: bubbles, sends, speed-up.

Legend: p stages, m micro-batches, v chunks of a stage, t seconds of a stage for a micro-batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..base.arrays import Value
from ..pipeline import schedules
from ..pipeline.dependency_graph import graph
from ..pipeline.event_simulation import StageTimes, Timeline, simulate
from ..plan.plan import Plan
from ..step.evaluate import evaluate
from ..step.plan_timeline import timeline_of
from ..task import Task
from . import closed_forms
from .textbook import TIME, FormulaRow

MOST_PASSES = 60_000
"""Forward passes that a row simulates: a second's work."""
TOO_MANY = "has more passes than are simulated here: plan3d timeline"


def pipeline_rows(task: Task, plan: Plan) -> list[FormulaRow]:
    """Idle time and sends of the plan's pipeline, and what is said of one pass and of one node.

    `plan` has every AUTO resolved.
    """
    stages = _stage_rows(task, plan)
    return [
        *_pass_rows(task, plan),
        *_bubble_rows(plan, _micro_batches(task, plan)),
        stages[0],
        _idle_row(task, plan, stages[0].textbook),
        *stages[1:],
    ]


def _micro_batches(task: Task, plan: Plan) -> int:
    return task.global_batch // int(plan.dp * plan.micro_batch)


def _pass_rows(task: Task, plan: Plan) -> list[FormulaRow]:
    one = replace(task, cluster=replace(task.cluster, gpus=1), global_batch=1)
    precision = str(plan.to_dict()["precision"])
    times = timeline_of(one, Plan(precision=precision, zero=0)).times
    back = float((times.input_gradient + times.weight_gradient)[0] / times.forward[0])
    node, b = task.cluster.gpus_per_node, int(plan.micro_batch)
    several = replace(task, cluster=replace(task.cluster, gpus=node), global_batch=node * b)
    alone = replace(one, global_batch=b)
    replica = Plan(micro_batch=b, precision=precision, zero=0)
    speeds = [evaluate(asked, replica).tokens_per_second for asked in (alone, several)]
    return [
        FormulaRow(
            TIME, "backward to forward", "2", 2.0, back, "",
            "gradients of inputs and of weights; attention recomputes its scores",
        ),
        FormulaRow(
            TIME, f"speed-up of {node} replicas", "n", float(node), speeds[1] / speeds[0], "",
            f"one node, {b} sequence{'s' * (b > 1)} a GPU: what of the exchange is not hidden",
        ),
    ]  # fmt: skip


def unit_timeline(name: str, ranks: int, virtual: int, micro_batches: int) -> Timeline:
    """A schedule of even stages: a forward pass takes 1, either half of a backward pass 1."""
    ones = np.ones(ranks * virtual)
    schedule = schedules.SCHEDULES.rows[schedules.schedule_code(name)]
    times = StageTimes(forward=ones, input_gradient=ones, weight_gradient=ones)
    return simulate(graph(schedule, ranks, virtual, micro_batches), times)


def idle_share(timeline: Timeline) -> float:
    """Idle over useful seconds of the mean rank."""
    idle, busy = np.asarray(timeline.idle), np.asarray(timeline.busy)
    return float(idle.sum() / busy.sum())


def _bubble_rows(plan: Plan, m: int) -> list[FormulaRow]:
    """Even stages of the plan's numbers: one at a time, micro-batches in a line, chunks."""
    p, v = int(plan.pp), int(plan.virtual_stages)
    cases = [("one stage at a time", "p - 1", "naive", 1, closed_forms.bubble(p, 1))]
    cases.append(("bubble, even stages", "(p - 1) / m", "1f1b", 1, closed_forms.bubble(p, m)))
    if v > 1:
        even = closed_forms.bubble(p, m, v)
        cases.append((f"bubble, v = {v}", "(p - 1) / (v m)", "interleaved", v, even))
    rows = []
    for name, formula, schedule, chunks, by_hand in cases:
        fits = p * m * chunks <= MOST_PASSES
        found = idle_share(unit_timeline(schedule, p, chunks, m)) if fits else None
        why = f"idle over useful time; p = {p}, m = {m:,}, event by event"
        rows.append(FormulaRow(TIME, name, formula, by_hand, found, "1", why if fits else TOO_MANY))
    return rows


def _stage_rows(task: Task, plan: Plan) -> list[FormulaRow]:
    """The plan's own stages, one chunk each: idle time, and what is waited for sends."""
    p, m = int(plan.pp), _micro_batches(task, plan)
    least, most = closed_forms.exposed_sends(p, m)
    fits = p * m <= MOST_PASSES
    idle: float | None = None
    hops: float | None = None
    by_hand, spread = closed_forms.bubble(p, m), ""
    if fits:
        layers = plan.layers_per_stage if plan.virtual_stages == 1 else ()
        cut = replace(plan, virtual_stages=1, schedule="1f1b", layers_per_stage=layers,
                      micro_batch_group=0, overlap_p2p=0)  # fmt: skip
        found = timeline_of(task, cut)
        without = simulate(found.timeline.graph, replace(found.times, hop=0.0))
        t: Value = found.times.forward + found.times.input_gradient + found.times.weight_gradient
        by_hand = closed_forms.uneven_bubble(t.tolist(), m)
        idle = idle_share(without)
        hops = _hops(found.pipeline_seconds - float(without.step_seconds), found.times.hop)
        spread = (
            f"; the slowest stage takes {100 * (t.max() / t.mean() - 1):.1f} % more than the mean"
        )
    why = f"p = {p}, m = {m:,}, event by event{spread}" if fits else TOO_MANY
    sends = "what a step waits for, in sends of a micro-batch's boundary" if fits else TOO_MANY
    return [
        FormulaRow(TIME, "bubble, its stages", "(sum+(m-1)max)/m mean-1", by_hand, idle, "1", why),
        FormulaRow(TIME, "sends, at least", "2 (p - 1)", float(least), hops, "", sends),
        FormulaRow(TIME, "sends, at most", "2 (p - 1) m", float(most), hops, "", sends),
    ]


def _idle_row(task: Task, plan: Plan, bubble: float) -> FormulaRow:
    """The plan's own bubble as other screens have it: idle over all time, not over useful time."""
    p, v, m = int(plan.pp), int(plan.virtual_stages), _micro_batches(task, plan)
    x = bubble if v == 1 else closed_forms.bubble(p, m, v)
    idle, why = None, TOO_MANY
    if p * m * v <= MOST_PASSES:
        found = timeline_of(task, plan)
        idle = float(found.timeline.idle.mean() / found.timeline.step_seconds)
        parts = {n: float(np.ravel(part)[0]) for n, part in found.costs.seconds.items()}
        waits = [f"{100 * parts[n] / found.closed_form:.1f} % {n}" for n in ("bubble", "imbalance")]
        why = (
            f"idle over all time of its schedule, sends too: plan3d timeline; of the whole step "
            f"{' and '.join(waits)}: plan3d estimate"
        )
    return FormulaRow(TIME, "idle of the pipeline", "x / (1 + x)", x / (1 + x), idle, "1", why)


def _hops(seconds: float, hop: Value | float) -> float:
    """Seconds in sends of one boundary; 0 without a pipeline."""
    each = float(np.mean(hop))
    return seconds / each if each else 0.0
