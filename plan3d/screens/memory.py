"""The screen of a plan's memory: the peak and its moment, a step of the fullest rank, all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from plan3d.simulator.analysis.memory_timeline import (
    Kept,
    MemoryTimeline,
    Moment,
    RankMemory,
)
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, format_seconds
from plan3d.simulator.calibration.traces.memory_events import NAMES as MEASURED
from plan3d.simulator.calibration.traces.memory_events import MeasuredPeak
from plan3d.simulator.reporting import report
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.step.memory import PARTS

from ..answers.explain import MemoryAnswer
from . import plan_lines, views
from .output import Screen

WORTH_NAMING = 0.002
"""Share of the peak from which a difference between ranks is named."""
ALIKE = 0.005
"""Difference of the closed form's peak from the simulated one that is not named."""


def print_memory(screen: Screen, answer: MemoryAnswer) -> None:
    """The peak, why it is on its rank, the fullest rank through a step, and the peaks of all."""
    found, worst = answer.memory, answer.memory.worst
    screen.lines([_headline(answer)])
    print()
    screen.items(
        [
            *plan_lines.question(found.timeline.task, number_format(answer.plan.costs.plans)),
            ("plan", str(found.timeline.plan)),
            ("memory", plan_lines.memory(answer.plan)),
            ("rank", why_this_rank(found)),
            *[("in flight", line) for line in (_in_flight(worst.in_flight),) if line],
            *[("note", line) for line in _notes(answer)],
        ]
    )
    print()
    moments = sorted({*_turning_points(worst)})
    stages = _ranks_have_several(found)
    names = [name for name in PARTS if any(_parts(rank, m)[name] for rank in found.ranks
                                           for m in (rank.peak, *moments[:1]))]  # fmt: skip
    starts = [format_seconds(worst.moments[m].seconds) for m in moments]
    screen.table(
        Table(
            title=f"Pipeline rank {worst.rank} through a step, GiB",
            headers=("pass", *(["starts"] if screen.details else []), "total", *names),
            rows=tuple(
                (
                    _short_name(worst.moments[m], stages),
                    *([start] if screen.details else []),
                    *_cells(worst, m, names),
                )
                for m, start in zip(moments, starts, strict=True)
            ),
            words=frozenset({0}),
            highlighted=moments.index(worst.peak),
        )
    )
    screen.table(_rank_table(found, names))
    if answer.measured is not None:
        screen.table(_measured_table(answer, answer.measured))


def _compared(answer: MemoryAnswer, measured: MeasuredPeak) -> dict[str, tuple[float, float]]:
    """Predicted and measured bytes of tensors at the peak of the fullest rank: without context and
    fragmentation, which are no tensors."""
    worst = answer.memory.worst
    predicted = _parts(worst, worst.peak)
    predicted["activations"] += predicted["logits"]
    return {name: (predicted.get(name, 0.0), measured.memory[name]) for name in MEASURED}


def _measured_table(answer: MemoryAnswer, measured: MeasuredPeak) -> Table:
    """The peak of a profiled rank beside that of the fullest rank."""
    rows = {name: both for name, both in _compared(answer, measured).items() if max(both) > 0}
    rows["total"] = (sum(one for one, _ in rows.values()), measured.total)
    left_out = f"; {measured.left_out}" if measured.left_out else ""
    return Table(
        title=f"Tensors at the peak of {measured.source}, GiB{left_out}",
        headers=("tenant", "predicted", "measured", "ratio"),
        rows=tuple(
            (name, f"{a / GIB:.2f}", f"{b / GIB:.2f}", f"{b / a:.2f}" if a > 0 else "")
            for name, (a, b) in rows.items()
        ),
        highlighted=len(rows) - 1,
    )


def _headline(answer: MemoryAnswer) -> str:
    found, worst, costs = answer.memory, answer.memory.worst, answer.plan.costs
    ranks = len(found.ranks)
    where = f"pipeline rank {worst.rank} of {ranks}" if ranks > 1 else "every rank"
    state = "" if costs.margin >= 0 else "OUT OF MEMORY: "
    return (
        f"{state}peak {worst.peak_bytes / GIB:.1f} of {costs.capacity / GIB:.1f} GiB on {where}, "
        f"at {worst.moments[worst.peak]}"
    )


def why_this_rank(found: MemoryTimeline) -> str:
    """Which tenants make the fullest rank fuller than the leanest."""
    ranks, worst, leanest = len(found.ranks), found.worst, found.leanest
    if ranks == 1:
        return "without pipeline stages all ranks hold the same"
    more = {
        name: size
        for name, size in found.excess().items()
        if abs(size) > WORTH_NAMING * worst.peak_bytes
    }
    if not more:
        return f"all {ranks} pipeline ranks hold as much"
    parts = ", ".join(
        f"{name} {size / GIB:+.1f} GiB"
        for name, size in sorted(more.items(), key=lambda item: -abs(item[1]))
    )
    return (
        f"{worst.rank} is the fullest of {ranks}, {leanest.rank} the leanest with "
        f"{leanest.peak_bytes / GIB:.1f} GiB; between them {parts}"
    )


def _in_flight(kept: Sequence[Kept]) -> str:
    """'stage 0: 4 micro-batches, 0 to 3, 5.2 GiB each; ...'."""
    out = []
    for (stage, size), group in groupby(kept, key=lambda one: (one.stage, one.bytes)):
        micros = [one.micro_batch for one in group]
        which = f"{micros[0]} to {micros[-1]}" if len(micros) > 1 else str(micros[0])
        plural = "es" if len(micros) > 1 else ""
        each = " each" if plural else ""
        out.append(f"stage {stage}: {len(micros)} micro-batch{plural} ({which}), "
                   f"{size / GIB:.2f} GiB{each}")  # fmt: skip
    return "; ".join(out)


def _notes(answer: MemoryAnswer) -> list[str]:
    closed, peak = answer.plan.costs.memory_bytes, answer.memory.worst.peak_bytes
    if abs(closed / peak - 1) <= ALIKE:
        return []
    return [f"searches and estimates count {closed / GIB:.1f} GiB for this plan (closed form)"]


def _turning_points(rank: RankMemory) -> list[int]:
    """The first pass, the last before the first backward pass, the peak, the last, the update."""
    names = [moment.name for moment in rank.moments]
    first_backward = next((i for i, name in enumerate(names) if name != "forward"), 0)
    return [0, max(first_backward - 1, 0), first_backward, rank.peak, len(names) - 2,
            len(names) - 1]  # fmt: skip


def _ranks_have_several(found: MemoryTimeline) -> bool:
    """Whether a rank runs more than one stage."""
    graph = found.timeline.timeline.graph
    return len({*zip(graph.rank.tolist(), graph.stage.tolist(), strict=True)}) > graph.ranks


def _short_name(moment: Moment, stages: bool) -> str:
    """'backward 3', with the stage where a rank has several."""
    if moment.micro_batch < 0:
        return moment.name
    where = f", stage {moment.stage}" if stages else ""
    return f"{moment.name} {moment.micro_batch}{where}"


def _parts(rank: RankMemory, moment: int) -> dict[str, float]:
    """Bytes by memory.PARTS at a moment."""
    at = rank.bytes_at(moment)
    return {**at, "reserve": at["context"] + at["fragmentation"]}


def _cells(rank: RankMemory, moment: int, names: Sequence[str]) -> tuple[str, ...]:
    """The total, then its parts, in GiB."""
    parts = _parts(rank, moment)
    sizes = (sum(parts[name] for name in PARTS), *(parts[name] for name in names))
    return tuple(f"{size / GIB:.2f}" for size in sizes)


def _rank_table(found: MemoryTimeline, names: Sequence[str]) -> Table:
    """Peaks of all ranks; neighbours that hold the same at the same moment are one row."""
    stages = _ranks_have_several(found)
    rows = [
        (
            rank.rank,
            (_short_name(rank.moments[rank.peak], stages), *_cells(rank, rank.peak, names)),
        )
        for rank in found.ranks
    ]
    runs = [[rank for rank, _ in group] for _, group in groupby(rows, key=lambda row: row[1][1:])]
    cells = dict(rows)
    return Table(
        title="Peaks by pipeline rank, GiB",
        headers=("rank", "at", "total", *names),
        rows=tuple(
            (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]), *cells[run[0]]) for run in runs
        ),
        words=frozenset({0, 1}),
        highlighted=next(i for i, run in enumerate(runs) if found.worst.rank in run),
    )


def memory_record(answer: MemoryAnswer) -> dict[str, Any]:
    """The JSON object of a plan's memory; bytes and seconds."""
    found, worst = answer.memory, answer.memory.worst
    measured: dict[str, Any] = {}
    if answer.measured is not None:
        rows = _compared(answer, answer.measured)
        measured["measured"] = {
            "source": answer.measured.source,
            "seconds": answer.measured.seconds,
            "memory_bytes": {**answer.measured.memory, "total": answer.measured.total},
            "predicted_bytes": {name: one for name, (one, _) in rows.items()},
            "left_out": answer.measured.left_out,
        }
    return {
        **views.question_record(found.timeline.task),
        "plan": report.plan_record(answer.plan.costs, 0)["plan"],
        "capacity": float(answer.plan.costs.capacity),
        "probability_fits": answer.plan.probability_fits,
        "peak": {
            "rank": worst.rank,
            "bytes": worst.peak_bytes,
            "closed_form_bytes": float(answer.plan.costs.memory_bytes),
            **_moment_record(worst, worst.peak),
            "in_flight": [one._asdict() for one in worst.in_flight],
            "why": why_this_rank(found),
        },
        "ranks": [{"rank": rank.rank, **_moment_record(rank, rank.peak)} for rank in found.ranks],
        "timeline": [_moment_record(worst, moment) for moment in range(len(worst.moments))],
        **measured,
    }


def _moment_record(rank: RankMemory, moment: int) -> dict[str, Any]:
    what, at = rank.moments[moment], rank.bytes_at(moment)
    passes = {} if what.micro_batch < 0 else {
        "stage": what.stage, "micro_batch": what.micro_batch}  # fmt: skip
    return {
        "moment": what.name,
        **passes,
        "start_seconds": what.seconds,
        "memory_bytes": {**at, "total": sum(at.values())},
    }
