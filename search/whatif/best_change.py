"""The one change that would help a plan most: of the plan, its precision, the batch or the network.

gain = tokens/s after over tokens/s before, less one
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plan3d.simulator.analysis.sensitivity import KNOBS
from plan3d.simulator.hardware.precision import CODES
from plan3d.simulator.rules.validity import violated
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task

from .single_field_changes import WORTH, edited, single_edits

NETWORK = "inter_node_bandwidth"


@dataclass(frozen=True)
class Change:
    """One change and what it gives."""

    what: str
    gain: float
    """Share of tokens/s more."""


def best_change(costs: Costs, limit: float | None = None) -> Change | None:
    """The change of one plan that gives most tokens/s and fits `limit` bytes (default: a GPU);
    None where none gives WORTH, or, of a plan that does not fit, where none makes it fit."""
    room = costs.one().capacity if limit is None else limit
    found = [*_of_the_plan(costs, room), *_of_the_task(costs.one(), room)]
    best = max(found, key=lambda change: change.gain, default=None)
    fits = costs.one().fits and costs.one().memory_bytes <= room
    return best if best is not None and (best.gain >= WORTH or not fits) else None


def _of_the_plan(costs: Costs, room: float) -> Iterator[Change]:
    """The fastest legal change of one field that fits, and is launched where the plan itself is."""
    edits = single_edits(costs, launchable=True)
    if edits.costs is None:
        return
    may = edits.costs.fits & (edits.costs.memory_total <= room)
    for row in np.flatnonzero(may)[:1].tolist():
        yield Change(edits.text(row), float(costs.step[0] / edits.costs.step[row]) - 1)


def _of_the_task(plan: Costs, room: float) -> Iterator[Change]:
    """fp8 where the GPU has it, twice the batch, and twice the network where there is one."""
    task, batch = plan.task, 2 * plan.task.global_batch
    if "fp8" in task.cluster.accelerator.peak and plan.plans.precision == CODES["bf16"]:
        yield from _gain("precision=fp8, which trains other numbers", task, plan, room, "fp8")
    larger = replace(task, global_batch=batch)
    yield from _gain(f"a global batch of {batch:,}, if the loss allows", larger, plan, room)
    if task.cluster.nodes > 1:
        faster = KNOBS[NETWORK].turned(task, 2.0)
        rate = task.cluster.network.bandwidth / 1e9
        said = f"a network of {2 * rate:g} GB/s a GPU instead of {rate:g}"
        yield from _gain(said, faster, plan, room)


def _gain(
    what: str, task: Task, plan: Costs, room: float, precision: str | None = None
) -> Iterator[Change]:
    """What the plan gains on another task, or in another precision; nothing where it may not."""
    change: dict[str, Any] = {} if precision is None else {"precision": CODES[precision]}
    other = edited(plan.plans.take(0), task, change)
    if violated(other, task):
        return
    costs = simulate(task, other.table(), single=True)
    if costs.fits and costs.memory_bytes <= room:
        yield Change(what, costs.tokens_per_second / plan.tokens_per_second - 1)
