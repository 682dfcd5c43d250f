"""Tracks of a predicted and a traced step beside each other, as one trace for Perfetto.

Below the processes of each predicted pipeline rank come those of its traced ranks: a thread of
parts, on which every moment is of one part or gap, and one for each stream. Both begin a step at 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..calibration.traces.breakdown import PARTS, RankBreakdown
from ..calibration.traces.job import TracedJob
from ..calibration.traces.kernels import short_name
from ..step.plan_timeline import PlanTimeline
from .trace import Event, metadata_event, slice_event, trace

MEASURED = 100_000
"""Number of the process of the first traced rank."""
MOST_KERNELS = 200_000
"""Slices of kernels of a rank; of one with more, parts alone are drawn."""
GAPS = "gap"


def beside_measured(x: PlanTimeline, job: TracedJob) -> dict[str, Any]:
    """The JSON object of a predicted timeline with the traced ranks of the same plan."""
    out = trace(x)
    events = [e for e in out["traceEvents"] if e["name"] != "process_sort_index"]
    ranks = x.timeline.graph.ranks
    for event in events:
        if event["name"] == "process_name":
            event["args"] = {"name": f"predicted, {event['args']['name']}"}
    events += [_order(stage, stage, 0) for stage in range(ranks)]
    for number, (one, stage) in enumerate(zip(job.ranks, job.stages, strict=True)):
        process, rank = MEASURED + number, one.trace.rank
        title = f"measured, rank {number if rank is None else rank}"
        if stage is not None:
            title += f" (stage {stage})"
        events.append(metadata_event("process_name", process, {"name": title}))
        events.append(_order(process, ranks if stage is None else stage, 1 + number))
        events += _parts(one, process)
        events += _kernels(one, process)
    return {**out, "traceEvents": events}


def _order(process: int, stage: int, place: int) -> Event:
    index = {"sort_index": stage * (MEASURED + 1) + place}
    return metadata_event("process_sort_index", process, index)


def _parts(one: RankBreakdown, process: int) -> list[Event]:
    """The moments of every part, and the gaps."""
    out = [metadata_event("thread_name", process, {"name": "parts"}, 0)]
    rows = {**one.exclusive, GAPS: one.gap_intervals}
    for name, (start, end) in rows.items():
        begins, lengths = (start - one.window.low).tolist(), (end - start).tolist()
        for begin, length in zip(begins, lengths, strict=True):
            out.append(slice_event(name, "measured part", (process, 0), begin, length))
    return out


def _kernels(one: RankBreakdown, process: int) -> list[Event]:
    """The kernels of every stream, by the name of each in short."""
    if one.rows.size > MOST_KERNELS:
        return []
    out: list[Event] = []
    names = [short_name(kernel.name) for kernel in one.trace.kinds]
    streams, thread = np.unique(one.trace.stream[one.rows], return_inverse=True)
    for number, stream in enumerate(streams.tolist(), 1):
        out.append(metadata_event("thread_name", process, {"name": f"stream {stream:g}"}, number))
    start, end = one.spans
    columns = (one.trace.kind[one.rows], one.part, 1 + thread, start - one.window.low, end - start)
    for kind, part, at, begin, length in zip(*(c.tolist() for c in columns), strict=True):
        about = {"part": PARTS[part], "shapes": one.trace.kinds[kind].shapes}
        place = (process, at)
        out.append(slice_event(names[kind], "measured", place, begin, length, **about))
    return out
