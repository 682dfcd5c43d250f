"""The first screen of one plan, asked for by `estimate` or read from a launch file."""

from __future__ import annotations

import argparse
from typing import Any

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB
from plan3d.simulator.reporting import report
from plan3d.simulator.reporting.report import host_needs
from plan3d.simulator.step.costs import Costs

from . import brief
from .output import Screen

PARTS = 4
"""Parts of a step and of the memory that are named."""
STATES = ("weights", "gradients", "optimizer")
"""Parts of the memory that stay from step to step."""


def print_plan(
    screen: Screen,
    costs: Costs,
    tokens: float | None = None,
    price: float | None = None,
    args: argparse.Namespace | None = None,
    more: brief.Items | None = None,
) -> None:
    """What one plan reaches, whether it fits, where time and memory go, and what would help."""
    screen.lines([brief.sentence(costs, tokens, price)])
    print()
    screen.items([*brief.facts(costs, args=args), *(more or []), *parts(costs)])
    print()
    if costs.plans.take(0).pp > 1:
        screen.table(_ranks(costs))
    if costs.uses_host:
        screen.items([("host", _host(costs))])
    screen.items([*brief.reasons(costs), *brief.helps(costs), ("more", brief.MORE)])


def parts(costs: Costs) -> brief.Items:
    """The largest parts of the step, and of the memory of the fullest rank."""
    one = costs.row()
    seconds = sorted(one.seconds.items(), key=lambda item: -item[1])[:PARTS]
    held = sorted(one.memory.items(), key=lambda item: -item[1])[:PARTS]
    step = ", ".join(f"{name} {100 * s / one.step_seconds:.1f} %" for name, s in seconds if s)
    memory = ", ".join(f"{name} {size / GIB:.1f}" for name, size in held if size)
    return [("step", step), ("", f"rank {one.worst_rank} holds GiB: {memory}")]


def _ranks(costs: Costs) -> Table:
    """The first, the fullest and the last of the pipeline ranks."""
    stages = report.stage_records(costs)
    fullest = max(range(len(stages)), key=lambda r: stages[r]["memory_bytes"]["total"])
    chosen = sorted({0, fullest, len(stages) - 1})
    rows = [_rank(stages[rank]) for rank in chosen]
    headers = ("rank", "layers", "states GiB", "activations GiB", "other GiB", "total GiB")
    return Table(
        headers=(*headers, "ms a micro-batch"), rows=tuple(rows), highlighted=chosen.index(fullest)
    )


def _rank(stage: dict[str, Any]) -> tuple[str, ...]:
    held = stage["memory_bytes"]
    states, kept = sum(held[name] for name in STATES), held["activations"]
    sizes = (states, kept, held["total"] - states - kept, held["total"])
    gib = (f"{size / GIB:.1f}" for size in sizes)
    milliseconds = f"{1e3 * stage['micro_batch_seconds']:.4g}"
    return (str(stage["rank"]), str(stage["layers"]), *gib, milliseconds)


def _host(costs: Costs) -> str:
    """What the fullest node holds of what the GPUs gave away."""
    return f"a node needs {host_needs(costs)}"
