"""A timeline as a trace for Perfetto or chrome://tracing, with kernels as a profiler writes them.

Process = pipeline rank; threads = compute, tensor-parallel, pipeline and data-parallel
communication; a counter follows the live activations; arrows go from a send to who needs it. Each
pass holds one kernel for each part of its time, with a name that a library gives such a kernel and
NCCL's metadata, so that whatever reads traces of a profiler reads this one.
Source: the Trace Event Format (JSON object form; times in microseconds); pytorch/kineto,
output_json.cpp, for the metadata.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..layers.cost_columns import Cost
from ..pipeline.operation_orders import LETTERS, Pass
from ..plan.fields import spell
from ..step.plan_timeline import PlanTimeline

Event = dict[str, Any]

COMPUTE, TENSOR, PIPELINE, DATA, HOST, STEP = range(6)
HOST_THREAD, BACKWARD_THREAD = 100, 101
"""Threads of the host that launch kernels, recomputed ones from the second."""
THREADS = {
    COMPUTE: "compute",
    TENSOR: "tensor parallel",
    PIPELINE: "pipeline",
    DATA: "data parallel",
    HOST: "host",
    STEP: "step",
    HOST_THREAD: "launches",
    BACKWARD_THREAD: "launches of the backward pass",
}
"""Names of the threads of every rank, by number."""
CATEGORIES = ("forward", "backward", "input gradient", "weight gradient")
"""Category of an operation by its pass."""
KERNELS = {
    Cost.MATMUL: (COMPUTE, "nvjet_tst_128x256_64x4_2x1_v_bz_TNT", None),
    Cost.ATTENTION: (COMPUTE, "void flash::flash_fwd_kernel", None),
    Cost.MEMORY_BOUND: (COMPUTE, "void at::native::vectorized_elementwise_kernel", None),
    Cost.RECOMPUTE: (COMPUTE, "nvjet_tst_192x192_64x3_2x1_v_bz_TNN", None),
    Cost.TENSOR_COMM: (TENSOR, "ncclDevKernel_AllGather_RING_LL", "tp"),
    Cost.CONTEXT_COMM: (TENSOR, "ncclDevKernel_SendRecv", "cp"),
    Cost.EXPERT_COMM: (TENSOR, "ncclDevKernel_AllToAll_RING_LL", "ep"),
    Cost.HOST_COMM: (HOST, "Memcpy HtoD (Pinned -> Device)", None),
}
"""Thread, name and axis of the kernel of each part of a pass."""
REDUCE, UPDATE = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "multi_tensor_apply_kernel AdamW"
OPERATIONS = {"tp": "_allgather_base", "cp": "send", "ep": "all_to_allv", "dp": "_reduce_scatter"}
_RANKS = "Process Group Ranks"


def trace(x: PlanTimeline) -> dict[str, Any]:
    """The JSON object of one plan's timeline, all its pipeline ranks."""
    events = [
        *_metadata(x),
        *_compute(x),
        *_kernels(x),
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


def replica_traces(replicas: Sequence[PlanTimeline]) -> list[dict[str, Any]]:
    """One trace for each pipeline rank of each data-parallel replica, which begin a step together:
    those that are done wait in their synchronisation for the slowest."""
    last = max(float(x.timeline.makespan) + x.unpaired_a2a_seconds for x in replicas)
    pp, out = replicas[0].timeline.graph.ranks, []
    for number, x in enumerate(replicas):
        events = [*_compute(x), *_kernels(x), *_sends(x), *_after_pipeline(x, last)]
        for stage in range(pp):
            mine = [{**e, "pid": 0} for e in events if e["pid"] == stage and e["ph"] == "X"]
            rank = stage * len(replicas) + number
            for one in mine:
                if _RANKS in one["args"]:
                    members = [s * len(replicas) + number for s in range(pp)]
                    one["args"] = {**one["args"], _RANKS: members}
            about = {"rank": rank, "world_size": pp * len(replicas), "backend": "nccl"}
            out.append({"distributedInfo": about, "traceEvents": mine})
    return out


def _metadata(x: PlanTimeline) -> list[Event]:
    out = []
    for rank in range(x.timeline.graph.ranks):
        out.append(metadata_event("process_name", rank, {"name": f"stage {rank}"}))
        out.append(metadata_event("process_sort_index", rank, {"sort_index": rank}))
        for thread, name in THREADS.items():
            out.append(metadata_event("thread_name", rank, {"name": name}, thread))
            out.append(metadata_event("thread_sort_index", rank, {"sort_index": thread}, thread))
    return out


def metadata_event(name: str, rank: int, args: dict[str, Any], thread: int = 0) -> Event:
    return {"ph": "M", "name": name, "pid": rank, "tid": thread, "args": args}


def microseconds(nanoseconds: int) -> float:
    """What a reader that truncates its thousandfold, as Perfetto's does, takes for whole
    nanoseconds."""
    out = nanoseconds / 1000
    return out if int(out * 1000.0) == nanoseconds else math.nextafter(out, math.inf)


def slice_event(
    name: str, category: str, place: tuple[int, int], start: float, seconds: float, **args: Any
) -> Event:
    """A slice of whole nanoseconds: those that follow each other do not overlap by rounding."""
    rank, thread = place
    begin, end = round(1e9 * start), round(1e9 * (start + seconds))
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": rank,
        "tid": thread,
        "ts": microseconds(begin),
        "dur": microseconds(end - begin),
        "args": args,
    }


def _operations(x: PlanTimeline) -> list[tuple[int, int, int, int, float, float]]:
    """(rank, pass, stage, micro-batch, start, end) of every operation."""
    g, t = x.timeline.graph, x.timeline
    columns = (g.rank, g.kind, g.stage, g.micro_batch, t.start, t.end)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _compute(x: PlanTimeline) -> list[Event]:
    """Every operation."""
    out = []
    for rank, kind, stage, micro, start, end in _passes(x):
        name, place = f"{LETTERS[kind]} {micro}", (rank, COMPUTE)
        out.append(
            slice_event(
                name, CATEGORIES[kind], place, start, end - start, stage=stage, micro_batch=micro
            )
        )
    return out


def _passes(x: PlanTimeline) -> list[tuple[int, int, int, int, float, float]]:
    """Operations as they are drawn: where a forward runs beside a backward pass, one after the
    other."""
    partner, rows = x.timeline.graph.partner, _operations(x)
    for other in partner[partner >= 0].tolist():
        one, two = rows[other - 1], rows[other]
        share = [_pass_parts(x, kind, stage).sum() for _, kind, stage, *_ in (one, two)]
        middle = one[4] + (one[5] - one[4]) * share[0] / max(sum(share), 1e-300)
        rows[other - 1], rows[other] = (*one[:5], middle), (*two[:4], middle, two[5])
    return rows


def _pass_parts(x: PlanTimeline, kind: int, stage: int) -> Any:
    """Seconds of each part of a pass [part]: what is run again is of the backward pass, whose other
    parts are what the forward pass leaves."""
    parts, times = x.part_seconds[:, stage], x.times
    seconds = [
        float(a[stage]) for a in (times.forward, times.input_gradient, times.weight_gradient)
    ]
    once = np.where(np.arange(parts.size) == Cost.RECOMPUTE, 0.0, parts)
    forward = once * min(seconds[0] / max(float(once.sum()), 1e-300), 1.0)
    if kind == Pass.FORWARD:
        return forward
    share = seconds[1] / max(seconds[1] + seconds[2], 1e-300)
    share = {Pass.BACKWARD: 1.0, Pass.INPUT: share, Pass.WEIGHT: 1 - share}[Pass(kind)]
    return (parts - forward) * share


def _kernels(x: PlanTimeline) -> list[Event]:
    """The kernels of every pass, one after another; what the host launches late begins late."""
    out: list[Event] = []
    for rank, kind, stage, _, start, end in _passes(x):
        parts = _slowed(_pass_parts(x, kind, stage), min(x.plan.pp / x.micro_batches, 1.0))
        _add_kernels(out, x, rank, parts * ((end - start) / max(float(parts.sum()), 1e-300)), start)
    return out


def _slowed(parts: Any, unpaired: float) -> Any:
    """Parts in which kernels take what hidden communication adds to them [part]; exchanges of
    experts hide beside all but an `unpaired` share of the micro-batches."""
    out, kernels = parts.copy(), parts[: Cost.RECOMPUTE + 1]
    out[Cost.EXPERT_COMM] += unpaired * parts[Cost.EXPERT_CONTENTION]
    out[Cost.MATMUL] += parts[Cost.TENSOR_CONTENTION]
    out[Cost.ATTENTION] += parts[Cost.CONTEXT_CONTENTION]
    every = (1 - unpaired) * parts[Cost.EXPERT_CONTENTION] / max(float(kernels.sum()), 1e-300)
    out[: kernels.size] += every * kernels
    out[Cost.TENSOR_CONTENTION : Cost.EXPERT_CONTENTION + 1] = 0.0
    return out


def _add_kernels(out: list[Event], x: PlanTimeline, rank: int, parts: Any, start: float) -> None:
    """A kernel for each part [part], one after another."""
    groups = {"tp": x.plan.tp, "cp": x.plan.cp, "ep": x.plan.ep}
    late, at, end = float(parts[Cost.LAUNCH]), start, start + float(parts.sum())
    for cost, (thread, name, axis) in KERNELS.items():
        seconds = float(parts[cost])
        if seconds <= 0:
            continue
        pieces = (seconds / 2, seconds / 2) if late > 0 and thread == COMPUTE else (seconds,)
        for number, piece in enumerate(pieces):
            args: dict[str, Any] = {}
            if number:
                at, late = at + late, 0.0
                args = _launched(out, (rank, HOST_THREAD), at)
            if cost == Cost.RECOMPUTE:
                args = _launched(out, (rank, BACKWARD_THREAD), start)
                again = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
                own = rank, BACKWARD_THREAD
                out.append(slice_event(again, "cpu_op", own, start, end - start))
            if axis:
                name_of = {"Process Group Name": f"{axis}{rank}"}
                args = _collective(OPERATIONS[axis], axis, int(groups[axis]), **name_of)
            category = "gpu_memcpy" if thread == HOST else "kernel"
            out.append(slice_event(name, category, (rank, thread), at, piece, **args))
            at += piece


def _launched(out: list[Event], place: tuple[int, int], at: float) -> dict[str, Any]:
    """The call that launches a kernel at a moment; what the kernel says of it."""
    number = {"correlation": 10_000_000 * place[0] + len(out)}
    out.append(slice_event("cudaLaunchKernel", "cuda_runtime", place, at, 0.0, **number))
    return number


def _collective(operation: str, axis: str, ranks: int, **more: Any) -> dict[str, Any]:
    """What NCCL's metadata says of a collective."""
    about = {"Collective name": operation, "Process Group Description": f"mesh_{axis}"}
    return {**about, "Group size": ranks, **more}


def _sends(x: PlanTimeline) -> list[Event]:
    """A slice for every send and for every rank that waits for one, and an arrow from the send to
    the operation that needs it."""
    g, rows, out = x.timeline.graph, _operations(x), []
    hop = float(np.max(x.times.hop))
    for i in np.flatnonzero(g.received_boundary >= 0).tolist():
        rank, kind, stage, micro, start, _ = rows[i]
        source = int(g.source[i])
        sender, end = rows[source][0], rows[source][5]
        name = f"send {LETTERS[kind]} {micro} to stage {rank}"
        group = _collective("send", "pp", g.ranks, **{_RANKS: [*range(g.ranks)]})
        out.append(slice_event(name, "send", (sender, PIPELINE), end, hop, stage=stage))
        free = rows[i - 1][5] if i and rows[i - 1][0] == rank else 0.0
        if start > free and rows[i][4] != rows[i - 1][4]:
            kernel = ("ncclDevKernel_SendRecv", "kernel", (rank, PIPELINE))
            out.append(slice_event(*kernel, free, start - free, **group))
        arrow = {"name": "send", "cat": "send", "id": i}
        sent, needed = microseconds(round(1e9 * end)), microseconds(round(1e9 * start))
        out.append({**arrow, "ph": "s", "pid": sender, "tid": PIPELINE, "ts": sent})
        out.append({**arrow, "ph": "f", "bp": "e", "pid": rank, "tid": COMPUTE, "ts": needed})
    return out


def _after_pipeline(x: PlanTimeline, last: float | None = None) -> list[Event]:
    """What follows the pipeline on every rank: exchanges of experts beside nothing, what kernels
    take longer beside hidden synchronisation, the exposed one, then the optimizer; `last` is when
    the last replica has done its passes."""
    end, out = float(x.timeline.makespan), []
    slowed = end + x.unpaired_a2a_seconds
    done = slowed + x.contended
    together = done if last is None else last + x.contended
    kernels = np.where(np.arange(len(x.part_seconds)) <= Cost.RECOMPUTE, x.part_seconds.sum(1), 0.0)
    kernels *= x.contended / max(float(kernels.sum()), 1e-300)
    update = together + x.data_comm
    step = update + x.optimizer + x.host_comm
    dp, ep = int(x.plan.dp * x.plan.cp), int(x.plan.ep)
    for rank in range(x.timeline.graph.ranks):
        if x.unpaired_a2a_seconds:
            name, group = KERNELS[Cost.EXPERT_COMM][1], _collective(OPERATIONS["ep"], "ep", ep)
            seconds = x.unpaired_a2a_seconds
            out.append(slice_event(name, "kernel", (rank, TENSOR), end, seconds, **group))
        _add_kernels(out, x, rank, kernels, slowed)
        if update > done:
            # Ranks of one stage synchronise together.
            group = _collective(OPERATIONS["dp"], "dp", dp, **{"Process Group Name": f"dp{rank}"})
            out.append(slice_event(REDUCE, "kernel", (rank, DATA), done, update - done, **group))
        out.append(slice_event(UPDATE, "kernel", (rank, COMPUTE), update, x.optimizer))
        if x.host_comm:
            name, at = "Memcpy DtoH (Device -> Pinned)", update + x.optimizer
            out.append(slice_event(name, "gpu_memcpy", (rank, HOST), at, x.host_comm))
        out.append(slice_event("ProfilerStep#0", "gpu_user_annotation", (rank, STEP), 0.0, step))
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
