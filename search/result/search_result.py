"""What does every search return, and how does it keep what it has seen?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.plan.fields import DISTINCT
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.costs import Costs, joined
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.step.stages import first_of_runs
from plan3d.simulator.task import Task

from .objective import score
from .pareto import beats_all, frontier

TIE = 0.05
"""Relative difference of step times that a prediction does not resolve: the median error of
published layouts of one model, predicted uncalibrated."""

ROUNDING = 1e-9
"""Relative difference of steps below which two plans count as equal."""

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


@dataclass(frozen=True)
class Trace:
    """Where a search improved: plans costed so far, and the best objective from then on."""

    evaluations: NDArray[np.intp]
    best: Value

    def at(self, evaluations: int) -> float:
        """The best objective after so many plans; infinity before the first that fits."""
        i = int(np.searchsorted(self.evaluations, evaluations, side="right"))
        return float(self.best[i - 1]) if i else np.inf

    def until(self, objective: float) -> float:
        """Plans costed until the best was that good; infinity when it never was."""
        reached = np.flatnonzero(self.best <= objective)
        return float(self.evaluations[reached[0]]) if reached.size else np.inf


@dataclass(frozen=True, kw_only=True)
class UniformSteps:
    """Seconds of a step of the best uniform plans; infinity where none fits."""

    same_pp: float
    """With as many stages as the best plan, without virtual stages."""
    whole: float
    """Without virtual stages."""
    every: float
    """Of all, with virtual stages where they help."""


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
    """False when legal plans were left out: interrupted, out of budget, or sampled."""
    costs: Costs | None
    """Costs of the ranked plans, best first; None when none is feasible."""
    frontier: Costs | None
    """Plans that no other beats in both step time and memory, fastest first; None where plans
    were left out of the search, or none fits."""
    smallest: Costs | None
    """The legal plan that needs least memory, feasible or not; None when none is legal."""
    interrupted: bool = False
    """Ended by Ctrl-C: the best so far."""
    trace: Trace | None = None
    """How the best plan came about, of a search that does not cost every plan."""
    bound: float | None = None
    """What no plan that fits scores below, where the backend proves it."""
    system: str | None = None
    """The system whose plans alone were searched."""
    compared: UniformSteps | None = None
    """Of a search over plans that are not uniform: what the best uniform ones take."""

    @property
    def plans(self) -> list[Plan]:
        return list(self.costs.plans) if self.costs is not None else []

    @property
    def best(self) -> Costs | None:
        """Costs of the best plan as plain numbers."""
        return None if self.costs is None else self.costs.one()

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
        gap = 1 - self.bound / found
        return gap if gap > ROUNDING else 0.0

    @cached_property
    def event_seconds(self) -> Value:
        """Step seconds of the ranked plans with their pipelines simulated event by event.

        The ranking keeps the closed form, which the frontier and the counts are made with.
        """
        from plan3d.simulator.step.plan_timeline import rescore

        return rescore(self.costs) if self.costs is not None else np.zeros(0)

    def to_frame(self) -> Any:
        """A pandas DataFrame of the ranked plans."""
        from plan3d.simulator.step.costs_tables import frame

        return frame(self.costs)

    def _repr_html_(self) -> str:
        from plan3d.simulator.step.costs_tables import html

        return html(self.costs) if self.costs is not None else "<p>no feasible plan</p>"


@dataclass
class BestPlans:
    """The best plans offered so far; of plans that differ only in minor fields, the best one."""

    limit: int
    found: list[Costs] = field(default_factory=list)
    scores: list[Value] = field(default_factory=list)

    def add(self, costs: Costs, scores: Value) -> None:
        """Offer a table; rows scored infinity are left out."""
        starts, run = first_of_runs(costs.plans, DISTINCT)
        lowest = np.minimum.reduceat(scores, starts)
        runs = np.flatnonzero(np.isfinite(lowest))
        if runs.size > self.limit:
            runs = runs[np.argpartition(lowest[runs], self.limit - 1)[: self.limit]]
        rows = [starts[i] + int(np.argmin(scores[run == i])) for i in np.sort(runs)]
        if rows:
            self.found.append(costs.take(np.array(rows)))
            self.scores.append(scores[rows])
        if len(self.found) > 16:
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

    def result(self) -> Costs | None:
        """The best rows in order; None when nothing finite was offered."""
        self._merge()
        return self.found[0] if self.found else None

    def _merge(self) -> None:
        if not self.found:
            return
        found, scores = joined(self.found), np.concatenate(self.scores)
        order = np.argsort(scores, kind="stable")
        keep = order[_first_seen(found.plans.take(order))][: self.limit]
        self.found, self.scores = [found.take(keep)], [scores[keep]]


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

    costs: Costs | None = None

    def add(self, costs: Costs, feasible: NDArray[np.bool_]) -> None:
        """Offer the feasible rows of a table."""
        known = (self.costs.step, self.costs.memory_total) if self.costs else (np.zeros(0),) * 2
        new = beats_all(costs.step, costs.memory_total, *known)
        new = new[feasible[new]]
        if not new.size:
            return
        fresh = costs.take(new)
        every = joined([self.costs, fresh]) if self.costs else fresh
        self.costs = every.take(frontier(every.step, every.memory_total))


class SearchRecord:
    """What a search has costed so far: counts, best plans, frontier and smallest plan."""

    def __init__(self, task: Task, objective: str, limit: float, top: int) -> None:
        self.task, self.objective, self.limit = task, objective, limit
        self.counts, self.best, self.frontier = Counts(), BestPlans(top), Frontier()
        self.smallest: Costs | None = None
        self.host_short = 0
        self.complete = self.interrupted = False
        self.began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.began

    def add(self, plans: Plan) -> Costs:
        """Cost a table and keep what is worth keeping."""
        costs = simulate(self.task, plans)
        scores = score(costs, self.objective, self.limit)
        feasible = np.isfinite(scores)
        if costs.uses_host:
            fits = costs.memory_total <= self.limit
            self.host_short += int(np.count_nonzero(fits & (costs.host_share > 1)))
        self.counts.evaluated += plans.rows
        self.counts.feasible += int(np.count_nonzero(feasible))
        self.best.add(costs, scores)
        self.frontier.add(costs, feasible)
        row = int(np.argmin(costs.memory_total))
        if self.smallest is None or costs.memory_total[row] < self.smallest.memory_bytes:
            self.smallest = costs.one(row)
        return costs

    def result(
        self,
        backend: str,
        candidates: int,
        removed: Mapping[str, int],
        trace: Trace | None = None,
    ) -> SearchResult:
        """The result; `removed` counts the candidates that were never costed, by reason."""
        self.counts.candidates = candidates
        large = self.counts.evaluated - self.counts.feasible
        self.counts.removed = {**removed, "memory": large - self.host_short}
        if self.host_short:
            self.counts.removed["host-memory"] = self.host_short
        return SearchResult(
            task=self.task,
            backend=backend,
            objective=self.objective,
            limit=self.limit,
            counts=self.counts,
            seconds_searching=self.seconds,
            complete=self.complete,
            costs=self.best.result(),
            frontier=self.frontier.costs,
            smallest=self.smallest,
            interrupted=self.interrupted,
            trace=trace,
        )
