"""What does every search return, and how does it keep what it has seen?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.plan import Plan, concat
from plan3d.simulator.stages import first_of_runs
from plan3d.simulator.step import Costs, simulate
from plan3d.simulator.task import Task

from .objective import score
from .pareto import beats_all, frontier
from .space import DISTINCT

Value = NDArray[np.float64]
TIE = 0.05
"""Relative difference of step times that a prediction does not resolve: the median error of
published layouts of one model, predicted uncalibrated."""

Progress = Callable[[int], None]
"""Called now and then with the number of plans costed so far."""


@dataclass
class Counts:
    """How many plans a search met."""

    candidates: int = 0
    """Combinations of the axes' values."""
    evaluated: int = 0
    """Legal plans, all costed in full."""
    feasible: int = 0
    """Plans within the memory limit."""
    removed: dict[str, int] = field(default_factory=dict)
    """Candidates that each rule, or memory, removed."""


@dataclass(kw_only=True)
class SearchResult:
    """Ranked plans of a task, the frontier of time against memory, and counts."""

    task: Task
    backend: str
    objective: str
    limit: float
    """Bytes a plan may use on a GPU: its capacity less the headroom."""
    counts: Counts
    seconds_searching: float
    complete: bool
    """False when interrupted: the best so far."""
    costs: Costs | None
    """Costs of the ranked plans, best first; None when none is feasible."""
    frontier: Costs | None
    """Plans that no other beats in both step time and memory, fastest first; None where plans
    were left out of the search, or none fits."""
    smallest: Costs | None
    """The legal plan that needs least memory, feasible or not; None when none is legal."""
    bound: float | None = None
    """What no plan that fits scores below, where the backend proves it."""

    @property
    def plans(self) -> list[Plan]:
        return list(self.costs.plans) if self.costs is not None else []

    @property
    def best(self) -> Costs | None:
        """Costs of the best plan as plain numbers."""
        if self.costs is None:
            return None
        return simulate(self.task, self.costs.plans.take(slice(0, 1)), single=True)

    @property
    def ties(self) -> int:
        """Ranked plans whose step is within TIE of the best: too close for a prediction to tell."""
        if self.costs is None:
            return 0
        step = self.costs.step
        return int(np.count_nonzero(step <= step[0] * (1 + TIE)))

    @property
    def gap(self) -> float | None:
        """How much better than the best plan another could be, relative; None where unknown."""
        if self.bound is None or self.costs is None:
            return None
        found = float(score(self.costs, self.objective, self.limit)[0])
        return max(1 - self.bound / found, 0.0)

    @cached_property
    def event_seconds(self) -> Value:
        """Step seconds of the ranked plans with their pipelines simulated event by event.

        The ranking keeps the closed form, which the frontier and the counts are made with.
        """
        from plan3d.simulator.plan_timeline import rescore

        return rescore(self.costs) if self.costs is not None else np.zeros(0)

    def to_frame(self) -> Any:
        """A pandas DataFrame of the ranked plans."""
        from plan3d.simulator.report import frame

        return frame(self.costs)

    def _repr_html_(self) -> str:
        from plan3d.simulator.report import html

        return html(self.costs) if self.costs is not None else "<p>no feasible plan</p>"


@dataclass
class Best:
    """The best plans offered so far; of plans that differ only in minor fields, the best one."""

    limit: int
    plans: list[Plan] = field(default_factory=list)
    scores: list[Value] = field(default_factory=list)

    def add(self, plans: Plan, scores: Value) -> None:
        """Offer a table; rows scored infinity are left out."""
        starts, run = first_of_runs(plans, DISTINCT)
        lowest = np.minimum.reduceat(scores, starts)
        runs = np.flatnonzero(np.isfinite(lowest))
        if runs.size > self.limit:
            runs = runs[np.argpartition(lowest[runs], self.limit - 1)[: self.limit]]
        rows = [starts[i] + int(np.argmin(scores[run == i])) for i in np.sort(runs)]
        if rows:
            self.plans.append(plans.take(np.array(rows)))
            self.scores.append(scores[rows])
        if len(self.plans) > 16:
            self._merge()

    @property
    def least(self) -> float:
        """The best score offered; infinity when nothing finite was."""
        return min((float(scores.min()) for scores in self.scores), default=np.inf)

    @property
    def threshold(self) -> float:
        """What a plan must score to enter: the last score of a full ranking, else infinity."""
        self._merge()
        full = bool(self.scores) and self.scores[0].size == self.limit
        return float(self.scores[0][-1]) if full else np.inf

    def result(self) -> Plan | None:
        """The best rows in order; None when nothing finite was offered."""
        self._merge()
        return self.plans[0] if self.plans else None

    def _merge(self) -> None:
        if len(self.plans) < 1:
            return
        plans, scores = concat(self.plans), np.concatenate(self.scores)
        order = np.argsort(scores, kind="stable")
        keep = order[_first_seen(plans.take(order))][: self.limit]
        self.plans, self.scores = [plans.take(keep)], [scores[keep]]


def _first_seen(plans: Plan) -> NDArray[np.intp]:
    """Rows at which a combination of DISTINCT fields appears first, in order."""
    seen: dict[tuple[int, ...], int] = {}
    columns = [getattr(plans, name).tolist() for name in DISTINCT]
    for row, key in enumerate(zip(*columns, strict=True)):
        seen.setdefault(key, row)
    return np.array(list(seen.values()), np.intp)


@dataclass
class Frontier:
    """The plans offered so far that no other beats in both step time and memory."""

    plans: Plan | None = None
    step: Value = field(default_factory=lambda: np.zeros(0))
    memory: Value = field(default_factory=lambda: np.zeros(0))

    def add(self, costs: Costs, feasible: NDArray[np.bool_]) -> None:
        """Offer the feasible rows of a table."""
        new = beats_all(costs.step, costs.memory_total, self.step, self.memory)
        new = new[feasible[new]]
        if not new.size:
            return
        plans = costs.plans.take(new)
        step = np.concatenate([self.step, costs.step[new]])
        memory = np.concatenate([self.memory, costs.memory_total[new]])
        plans = concat([self.plans, plans]) if self.plans else plans
        keep = frontier(step, memory)
        self.plans, self.step, self.memory = plans.take(keep), step[keep], memory[keep]
