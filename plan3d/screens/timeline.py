"""The screen of a timeline: what the ranks do, what is critical, and its JSON object."""

from __future__ import annotations

from typing import Any

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, format_seconds
from plan3d.simulator.reporting import report
from plan3d.simulator.step.plan_timeline import PlanTimeline

from . import views
from .output import Screen


def timeline_record(x: PlanTimeline, chart: bool = False) -> dict[str, Any]:
    """The JSON object of a timeline; seconds and bytes. With what a `chart` of it draws."""
    t, drawn = x.timeline, {}
    if chart:
        from plan3d.simulator.reporting.gantt import timeline_chart

        drawn = {"chart": timeline_chart(x)}
    return {
        **views.question_record(x.task),
        "plan": report.plan_record(x.costs, 0)["plan"],
        "step_seconds": x.step_seconds,
        "closed_form_step_seconds": x.closed_form,
        "seconds": {
            "pipeline": x.pipeline_seconds,
            "expert_comm": x.unpaired_a2a_seconds,
            "contended": x.contended,
            "data_comm": x.data_comm,
            "host_comm": x.host_comm,
            "optimizer": x.optimizer,
        },
        "hop_seconds": float(x.times.hop),
        "operations": t.graph.operations,
        "idle_share": float(t.idle.mean() / t.step_seconds),
        "ranks": _ranks(x),
        "critical_path": _critical_path(x),
        **drawn,
    }


def _ranks(x: PlanTimeline) -> list[dict[str, Any]]:
    """What every pipeline rank does."""
    t = x.timeline
    columns = (
        t.busy.tolist(),
        t.idle.tolist(),
        t.peak(x.activations, x.weight_gradient_inputs).tolist(),
    )
    return [
        {
            "rank": rank,
            "busy_seconds": busy,
            "idle_seconds": idle,
            "idle_share": idle / x.pipeline_seconds,
            "activations_peak_bytes": peak,
        }
        for rank, (busy, idle, peak) in enumerate(zip(*columns, strict=True))
    ]


def _critical_path(x: PlanTimeline) -> dict[str, Any]:
    """What the longest chain of operations is made of."""
    import numpy as np

    from plan3d.simulator.reporting.trace import CATEGORIES

    t, path = x.timeline, x.timeline.critical_path()
    seconds = (t.end - t.start)[path]
    kinds, own = t.graph.kind[path], t.graph.rank[path]
    paired = np.isin(path + 1, t.graph.partner)
    longest = int(np.bincount(own, seconds).argmax())
    out: dict[str, Any] = {
        name.replace(" ", "_"): float(seconds[(kinds == kind) & ~paired].sum())
        for kind, name in enumerate(CATEGORIES)
    }
    out["forward_beside_backward"] = float(seconds[paired].sum())
    out["sends_and_waits"] = float(t.makespan - seconds.sum())
    return {"operations": int(path.size), "longest_on_rank": longest, "seconds": out}


def print_timeline(screen: Screen, x: PlanTimeline) -> None:
    """The step, and what every pipeline rank does."""
    if screen.details:
        screen.lines([*views.header(x.task), f"Plan: {x.plan}"])
        print()
        screen.lines(_summary(x))
    else:
        screen.lines(_summary(x))
        screen.lines([*views.header(x.task)[:1], f"Plan: {x.plan}"])
    print()
    rows = tuple(
        (
            str(r["rank"]),
            f"{r['busy_seconds']:.4g}",
            f"{r['idle_seconds']:.4g}",
            f"{100 * r['idle_share']:.1f}",
            f"{r['activations_peak_bytes'] / GIB:.2f}",
        )
        for r in _ranks(x)
    )
    headers = ("rank", "busy s", "idle s", "idle %", "activations GiB")
    screen.table(Table(headers=headers, rows=rows, words=frozenset()))


def _summary(x: PlanTimeline) -> list[str]:
    """The step, the closed form beside it, and what decides it."""
    t, path = x.timeline, _critical_path(x)
    parts = (
        f"{format_seconds(x.data_comm)} synchronisation, {format_seconds(x.optimizer)} optimizer"
    )
    if x.contended:
        parts = f"{format_seconds(x.contended)} kernels slowed by what hides of it, {parts}"
    if x.host_comm:
        parts += f", {format_seconds(x.host_comm)} copies to and from the host"
    idle = float(t.idle.mean() / t.step_seconds)
    lines = [
        f"Step {x.step_seconds:.4g} s, simulated: pipeline {x.pipeline_seconds:.4g} s "
        f"({x.micro_batches} micro-batches, {t.graph.operations:,} operations, "
        f"{100 * idle:.1f} % idle, {100 * idle / (1 - idle):.1f} % of useful time), {parts}"
    ]
    difference = 100 * (x.step_seconds / x.closed_form - 1)
    lines.append(f"Closed form {x.closed_form:.4g} s: the simulation differs {difference:+.2f} %")
    seconds = ", ".join(
        f"{name.replace('_', ' ')} {part:.4g} s" for name, part in path["seconds"].items() if part
    )
    lines.append(
        f"Critical path: {path['operations']:,} operations, most of them on rank "
        f"{path['longest_on_rank']}; {seconds}"
    )
    return lines
