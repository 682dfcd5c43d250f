"""Shapes of pipelines: schedule, virtual stages, and the overlaps that go with them.

Legend: p pipeline ranks, v chunks a rank holds, m micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.pipeline import schedules
from plan3d.simulator.pipeline.schedule import SEVERAL, Placement, Schedule, Sizes
from plan3d.simulator.plan.values import AUTO
from plan3d.simulator.rules.expert_rules import overlaps_experts
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Network

Axes = Mapping[str, tuple[int, ...]]


class Shape(NamedTuple):
    """Fields of a plan, shared by all stages, that decide how a pipeline runs."""

    schedule: int
    virtual_stages: int = 1
    overlap_p2p: int = 0
    overlap_ep: int = 0

    def fits(self, task: Task, pp: int, m: int) -> bool:
        """Whether so many ranks and micro-batches can run it."""
        schedule, v = schedules.SCHEDULES.rows[self.schedule], self.virtual_stages
        if pp * v > task.model.layers or (pp == 1 and (v > 1 or schedule.needs_stages)):
            return False
        if v > 1 and pp == 2 and not self.overlap_p2p:
            return False
        if self.overlap_ep and not _overlaps_experts(task, pp, v, self.schedule):
            return False
        return all(one.ok(Sizes(pp, v, pp, m)) for one in schedule.conditions)


def of_chunks(schedule: Schedule) -> bool:
    """Whether chunks are placed in turn and a rank idles for a chunk of each other one."""
    in_turn = schedule.placement == Placement.LOOPED
    return in_turn and schedule.chunks == SEVERAL and schedule.idle is None


def one_kind(task: Task) -> bool:
    """Whether all layers are alike, so that a rank has a number of them, whatever its chunks."""
    return len(set(task.model.order)) == 1 and not isinstance(task.model, Network)


def shapes(task: Task, axes: Axes, backend: str, known: tuple[str, ...]) -> tuple[Shape, ...]:
    """Every shape that the axes of a space allow, whole stages under one of the `known` schedules.

    Raises InputError for a schedule that no stages of their own can have.
    """
    found = []
    for v in axes["virtual_stages"]:
        codes = [int(schedules.usual(v)) if c == AUTO else c for c in axes["schedule"]]
        # Only chunks have sends to hide.
        sends = [int(v > 1) if c == AUTO else c for c in axes["overlap_p2p"]]
        for code in dict.fromkeys(codes):
            if _runs(code, v, backend, known) and (v > 1 or 0 in sends):
                found += [Shape(code, v, max(sends) * (v > 1), ep) for ep in _beside(axes)]
    return tuple(found)


def has_whole_stages(found: tuple[Shape, ...]) -> bool:
    """Whether stages may be whole, without anything that hides behind another micro-batch."""
    return any(shape[1:] == (1, 0, 0) for shape in found)


def _runs(code: int, v: int, backend: str, known: tuple[str, ...]) -> bool:
    """Whether a schedule runs so many chunks a rank."""
    schedule = schedules.SCHEDULES.rows[code]
    if schedule.name not in known and not of_chunks(schedule):
        names = [*known, *(s.name for s in schedules.SCHEDULES.rows if of_chunks(s))]
        raise InputError(
            f"{backend} knows the schedules {', '.join(names[:-1])} and {names[-1]}, not "
            f"{schedule.name}"
        )
    return of_chunks(schedule) if v > 1 else schedule.name in known


def _beside(axes: Axes) -> tuple[int, ...]:
    """Values of overlap_ep, those that a search derives where it is AUTO."""
    return (0, 1) if axes["overlap_ep"] == (AUTO,) else axes["overlap_ep"]


def _overlaps_experts(task: Task, pp: int, v: int, schedule: int) -> bool:
    """Whether experts' exchanges may hide behind another micro-batch (space.axes.DERIVED)."""
    allowed = bool(overlaps_experts(pp, v, schedule))
    return allowed and (pp > 1 or task.model.mtp_layers == 0)


def uncovered(task: Task, found: tuple[Shape, ...]) -> tuple[str, ...]:
    """What a search over stages of their own in these shapes leaves to uniform plans, in words."""
    out = []
    if any(shape.virtual_stages > 1 for shape in found) and not one_kind(task):
        out.append("virtual stages whose ranks differ, for the model has several kinds of layers")
    return tuple(out)
