"""Tracks of a predicted and a traced step beside each other, as one trace for Perfetto.

Below the processes of each predicted pipeline rank come those of its traced ranks: a thread of
parts, on which every moment is of one part or gap, and those of each stream. Both begin a step at
0.
"""

from __future__ import annotations

from typing import Any

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
Thread = tuple[float, int]
"""A stream, and how many kernels of it that still run are drawn on threads before this one."""


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
    start, end = one.spans
    threads = _threads(one.trace.stream[one.rows].tolist(), start.tolist(), end.tolist())
    numbers = {thread: number for number, thread in enumerate(sorted({*threads}), 1)}
    for (stream, beside), number in numbers.items():
        name = {"name": f"stream {stream:g}" + ", beside" * bool(beside)}
        out.append(metadata_event("thread_name", process, name, number))
    columns = (one.trace.kind[one.rows], one.part, start - one.window.low, end - start)
    rows = zip(threads, *(column.tolist() for column in columns), strict=True)
    for thread, kind, part, begin, length in rows:
        about = {"part": PARTS[part], "shapes": one.trace.kinds[kind].shapes}
        place = (process, numbers[thread])
        out.append(slice_event(names[kind], "measured", place, begin, length, **about))
    return out


def _threads(streams: list[float], starts: list[float], ends: list[float]) -> list[Thread]:
    """The thread of each kernel, in the order of starts: kernels of one stream may run beside each
    other (programmatic dependent launch), slices of one thread may not."""
    busy: dict[Thread, float] = {}
    out = []
    for stream, start, end in zip(streams, starts, ends, strict=True):
        beside = 0
        while busy.get((stream, beside), start) > start:
            beside += 1
        busy[stream, beside] = end
        out.append((stream, beside))
    return out
