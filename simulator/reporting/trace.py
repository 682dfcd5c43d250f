"""A timeline as a trace for Perfetto or chrome://tracing.

Process = pipeline rank; threads = compute, tensor-parallel, pipeline and data-parallel
communication; a counter follows the live activations; arrows go from a send to who needs it.
Source: the Trace Event Format (JSON object form; times in microseconds).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..pipeline.operation_orders import LETTERS, Pass
from ..plan.fields import spell
from ..step.plan_timeline import PlanTimeline

Event = dict[str, Any]

THREADS = ("compute", "tensor parallel", "pipeline", "data parallel", "host")
"""Names of the threads of every rank, by number."""
COMPUTE, TENSOR, PIPELINE, DATA, HOST = range(5)
CATEGORIES = ("forward", "backward", "input gradient", "weight gradient")
"""Category of an operation by its pass."""


def trace(x: PlanTimeline) -> dict[str, Any]:
    """The JSON object of one plan's timeline."""
    events = [
        *_metadata(x),
        *_compute(x),
        *_within_passes(x),
        *_sends(x),
        *_after_pipeline(x),
        *_memory(x),
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "plan": str(x.plan),
            "schedule": spell("schedule", x.plan.schedule),
            "step_seconds": x.step_seconds,
        },
        "traceEvents": events,
    }


def _metadata(x: PlanTimeline) -> list[Event]:
    out = []
    for rank in range(x.timeline.graph.ranks):
        out.append(_metadata_event("process_name", rank, {"name": f"stage {rank}"}))
        out.append(_metadata_event("process_sort_index", rank, {"sort_index": rank}))
        for thread, name in enumerate(THREADS):
            out.append(_metadata_event("thread_name", rank, {"name": name}, thread))
            out.append(_metadata_event("thread_sort_index", rank, {"sort_index": thread}, thread))
    return out


def _metadata_event(name: str, rank: int, args: dict[str, Any], thread: int = 0) -> Event:
    return {"ph": "M", "name": name, "pid": rank, "tid": thread, "args": args}


def _slice(
    name: str, category: str, place: tuple[int, int], start: float, seconds: float, **args: Any
) -> Event:
    rank, thread = place
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": rank,
        "tid": thread,
        "ts": 1e6 * start,
        "dur": 1e6 * seconds,
        "args": args,
    }


def _operations(x: PlanTimeline) -> list[tuple[int, int, int, int, float, float]]:
    """(rank, pass, stage, micro-batch, start, end) of every operation."""
    g, t = x.timeline.graph, x.timeline
    columns = (g.rank, g.kind, g.stage, g.micro_batch, t.start, t.end)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _compute(x: PlanTimeline) -> list[Event]:
    """Every operation; where a forward runs beside a backward pass, one after the other."""
    partner = x.timeline.graph.partner
    together = set(partner[partner >= 0].tolist())
    out = []
    for i, (rank, kind, stage, micro, start, end) in enumerate(_operations(x)):
        middle = (start + end) / 2
        if i in together:
            start = middle
        elif i + 1 in together:
            end = middle
        name, place = f"{LETTERS[kind]} {micro}", (rank, COMPUTE)
        out.append(
            _slice(
                name, CATEGORIES[kind], place, start, end - start, stage=stage, micro_batch=micro
            )
        )
    return out


def _within_passes(x: PlanTimeline) -> list[Event]:
    """Exposed tensor-parallel communication and copies to and from the host, drawn at the end of
    each pass."""
    shares = (
        (x.tensor_share, TENSOR, "collectives", "tensor"),
        (x.host_share, HOST, "copies", "host"),
    )
    out = []
    for share, thread, what, category in shares:
        for rank, kind, stage, micro, start, end in _operations(x) if share else ():
            seconds, name = share * (end - start), f"{what} of {LETTERS[kind]} {micro}"
            if kind != Pass.WEIGHT:
                place = (rank, thread)
                out.append(_slice(name, category, place, end - seconds, seconds, stage=stage))
    return out


def _sends(x: PlanTimeline) -> list[Event]:
    """A slice for every send, and an arrow from it to the operation that needs it."""
    g, rows, out = x.timeline.graph, _operations(x), []
    hop = float(np.max(x.times.hop))
    for i in np.flatnonzero(g.received_boundary >= 0).tolist():
        rank, kind, stage, micro, start, _ = rows[i]
        source = int(g.source[i])
        sender, end = rows[source][0], rows[source][5]
        name = f"send {LETTERS[kind]} {micro} to stage {rank}"
        out.append(_slice(name, "send", (sender, PIPELINE), end, hop, stage=stage))
        arrow = {"name": "send", "cat": "send", "id": i}
        out.append({**arrow, "ph": "s", "pid": sender, "tid": PIPELINE, "ts": 1e6 * end})
        out.append({**arrow, "ph": "f", "bp": "e", "pid": rank, "tid": COMPUTE, "ts": 1e6 * start})
    return out


def _after_pipeline(x: PlanTimeline) -> list[Event]:
    """What follows the pipeline on every rank: exposed synchronisation, then the optimizer."""
    end, out = float(x.timeline.makespan), []
    for rank in range(x.timeline.graph.ranks):
        if x.data_comm:
            name = "gradient and weight synchronisation"
            out.append(_slice(name, "data", (rank, DATA), end, x.data_comm))
        at = end + x.data_comm
        out.append(_slice("optimizer", "optimizer", (rank, COMPUTE), at, x.optimizer))
        if x.host_comm:
            name, at = "gradients down, weights up", at + x.optimizer
            out.append(_slice(name, "host", (rank, HOST), at, x.host_comm))
    return out


def _memory(x: PlanTimeline) -> list[Event]:
    out = []
    for rank, (moments, held) in enumerate(
        x.timeline.live_activations(x.activations, x.weight_gradient_inputs)
    ):
        for moment, size in zip(moments.tolist(), held.tolist(), strict=True):
            counter = {"ph": "C", "name": "activations", "pid": rank, "tid": COMPUTE}
            out.append({**counter, "ts": 1e6 * moment, "args": {"bytes": round(max(size, 0.0))}})
    return out
