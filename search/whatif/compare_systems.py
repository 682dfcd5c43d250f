"""Known systems on one task: the best plan of each, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from plan3d.simulator.base.printable import shorten
from plan3d.simulator.base.text_tables import Table, format_table, tables_html
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import probability_fits

from ..exact import exhaustive
from ..rank_plans import Ranking, memory_limit
from ..result.obstacle import obstacle
from ..result.options import Progress, SearchOptions
from ..result.search_result import SearchResult
from ..space.space import Choices, Space
from ..systems.system_plans import complete_plan, constraints
from ..systems.systems import SYSTEMS, System
from ..systems.systems import system as system_named
from .cluster_size import with_gpus
from .row_tables import WHOLE, WIDEST, rows_table, with_gib
from .schedulers import Scheduler, searches

if TYPE_CHECKING:
    from plan3d.simulator.reporting.palette import Picture

BASELINE = SYSTEMS["sequential"]
"""What the others are compared with."""
OF_ONE_DEVICE = ("micro_batch", "recompute", "precision", "optimizer")
"""Plan fields that matter without other devices."""


@dataclass(frozen=True)
class SystemEntry:
    """One system on a task."""

    system: System
    result: SearchResult

    @property
    def best(self) -> Costs | None:
        """Costs of its best plan; None where it has none."""
        return self.result.best

    @property
    def obstacle(self) -> str:
        """Why it has no plan; '' where it has one."""
        if self.result.plans:
            return ""
        return self._broken_rule or obstacle(self.result)

    @property
    def _broken_rule(self) -> str:
        """Where rules leave no plan: the one that the system's plainest plan breaks."""
        found = self.result
        if found.smallest is not None:
            return ""
        plain = resolve(complete_plan(self.system, Plan(), frozenset()), found.task.gpus)
        broken = [
            text for name, text in violations(plain, found.task) if found.counts.removed.get(name)
        ]
        return next(iter(broken), "")


@dataclass(frozen=True, repr=False)
class BySystem:
    """Systems on one task, in the order asked."""

    task: Task
    objective: str
    limit: float
    """Bytes that a plan may use on a GPU; more, `result.limit`, in a system none of whose plans is
    sure to fit."""
    entries: list[SystemEntry]
    one_device: Costs | None
    """One device's fastest plan that fits, or else its fastest; None where none is legal."""
    complete: bool
    """False when interrupted: systems are missing."""

    def to_frame(self) -> Any:
        """A pandas DataFrame, a row a system: its best plan, or why it has none."""
        import pandas

        return with_gib(pandas.DataFrame([self._row(entry) for entry in self.entries]))

    def _row(self, entry: SystemEntry) -> dict[str, Any]:
        best = entry.best
        if best is None:
            return {"system": entry.system.name, "plan": entry.obstacle}
        return {
            "system": entry.system.name,
            "step_seconds": best.step_seconds,
            "speed_up": self.speed_up(best),
            "mfu": best.mfu,
            "memory_bytes": best.memory_bytes,
            "probability_fits": probability_fits(best),
            "plan": str(best.plans),
        }

    def plot(self) -> Picture:
        """The step of every system that fits, by where its time goes: in a notebook a picture,
        elsewhere plot().save("systems.png"). InputError where none fits."""
        from plan3d.simulator.reporting.palette import Picture

        from .pictures import systems_page

        return Picture(systems_page(self))

    def _table(self, widest: int = WIDEST) -> Table:
        return rows_table([self._row(entry) for entry in self.entries], ["system"], widest)

    def _repr_html_(self) -> str:
        return tables_html([self._table(WHOLE)])

    def __str__(self) -> str:
        """A row a system: its best plan, or why it has none."""
        return format_table(self._table())

    def __repr__(self) -> str:
        first = f", fastest {self.fastest.system.name}" if self.fastest else ""
        where = f"{self.task.model.name} on {self.task.gpus} x {self.task.cluster.name}"
        return shorten(f"BySystem({where}, {len(self.entries)} systems{first})", 400)

    def speed_up(self, costs: Costs) -> float | None:
        """Step of one device over that of a plan; None without the first."""
        return (
            None if self.one_device is None else self.one_device.step_seconds / costs.step_seconds
        )

    @property
    def fastest(self) -> SystemEntry | None:
        """The system with the best plan: by time to accuracy where the task has a goal, else by
        the step, among systems whose steps are worth the same."""
        if self.task.goal is None:
            return self.shortest_exact
        ready = [e for e in self.entries if e.best is not None]
        return min(ready, key=lambda e: e.best.accuracy_seconds if e.best else np.inf, default=None)

    @property
    def shortest(self) -> SystemEntry | None:
        """The system with the shortest step, whatever a step of it is worth."""
        return _shortest([e for e in self.entries if e.best is not None])

    @property
    def shortest_exact(self) -> SystemEntry | None:
        """The system with the shortest step among those whose step is that of one device."""
        return _shortest([e for e in self.entries if e.best is not None and e.system.exact])


def _shortest(entries: Sequence[SystemEntry]) -> SystemEntry | None:
    """The entry with the shortest step; all of them have a plan."""
    return min(entries, key=lambda e: e.best.step_seconds if e.best else np.inf, default=None)


@dataclass(frozen=True, kw_only=True)
class SystemsRequest:
    """Which training systems are compared, over which plans."""

    systems: Sequence[System | str] | None = None
    """None for all of SYSTEMS."""
    choose: Choices = field(default_factory=dict)
    """Values of plan fields that narrow every system."""
    headroom: float | None = None
    """That of a Ranking."""
    scheduler: Scheduler | None = None
    """What runs the searches (schedulers.Scheduler); None for this process."""
    progress: Progress | None = None
    """Is called with the number of plans costed of each system so far."""


def compare_systems(task: Task, request: SystemsRequest) -> BySystem:
    """Search the plans of every system: by step time, by time to accuracy where the task has a
    goal.

    Raises InputError for an unknown name, and where what is chosen contradicts one of the systems.
    """
    choose, headroom, systems = request.choose, request.headroom, request.systems
    asked = SYSTEMS.values() if systems is None else systems
    objective = "time-to-accuracy" if task.goal else "step-time"
    here = request.progress if request.scheduler is None else None
    ranking = Ranking(objective=objective, choose=choose, headroom=headroom, top=1, progress=here)
    entries: list[SystemEntry] = []
    device = _one_device(task, choose)
    limit = memory_limit(device.task, headroom)
    alone = _fastest(device, limit, headroom)
    named = [system_named(s) if isinstance(s, str) else s for s in asked]
    questions = (
        (
            task if system.gpus is None else with_gpus(task, system.gpus),
            replace(ranking, system=system.name),
        )
        for system in named
    )
    with closing(searches(request.scheduler, questions)) as results:
        for system, found in zip(named, results, strict=False):
            if found.interrupted:
                break
            entries.append(SystemEntry(system, found))
    complete = len(entries) == len(named)
    return BySystem(task, objective, limit, entries, alone, complete)


def _one_device(task: Task, choose: Mapping[str, Sequence[Any]]) -> Space:
    """The plans of one device under what `choose` says of it."""
    own = {name: values for name, values in choose.items() if name in OF_ONE_DEVICE}
    one = with_gpus(task, 1)
    return Space.of(one, constraints(BASELINE, one, own))


def _fastest(space: Space, limit: float, headroom: float | None) -> Costs | None:
    """The fastest plan that fits, as find_plans has it; where none does, of unlimited memory."""
    for most in (limit, np.inf):
        found = exhaustive.search(space, SearchOptions(limit=most, top=1)).unless_interrupted()
        if found.best is not None:
            return found.best
    return None
